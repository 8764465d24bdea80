"""The model family and the prepared media that a configuration asks for."""

from __future__ import annotations

import os
from functools import partial

from mmr1.config import Config, DataConfig
from mmr1.vision.families.qwen2_5_vl import Family, load_family, prepare_media
from mmr1.vision.prepare import MediaCache
from mmr1.vision.preparers import Prepare, Preparers

CORES_PER_MEDIA_WORKER = 4
"""The others train, verify and feed the engine."""


def family_of(config: Config) -> Family:
    """The processor of ``model.path``, with the video sampling of ``data``."""
    return _family(config.model.path, config.data)


def _family(path: str, data: DataConfig) -> Family:
    return load_family(path, fps=data.video_fps, max_frames=data.video_max_frames)


def media_cache(family: Family, config: Config) -> MediaCache:
    """Prepared media, each made once; in ``data.media_workers`` processes."""
    workers = config.data.media_workers
    if workers is None:
        workers = (os.cpu_count() or 1) // CORES_PER_MEDIA_WORKER
    here = partial(prepare_media, family)
    if workers == 0:
        return MediaCache(here)
    load = partial(_preparer, config.model.path, config.data)
    return MediaCache(here, elsewhere=Preparers(load, workers))


def _preparer(path: str, data: DataConfig) -> Prepare:
    """What a process that prepares media loads for itself."""
    return partial(prepare_media, _family(path, data))
