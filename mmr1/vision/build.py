"""The model family and the prepared media that a configuration asks for."""

from __future__ import annotations

import os
from functools import partial

from mmr1.config import Config, DataConfig
from mmr1.vision.families.chat import ChatOptions, read_template
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from mmr1.vision.preparers import Prepare, Preparers

CORES_PER_MEDIA_WORKER = 4
"""The others train, verify and feed the engine."""


def family_of(config: Config) -> ModelFamily:
    """The processor of ``model.path``, with the chat template and the media sizes of ``data``."""
    return _family(config.model.path, config.data)


def _family(path: str, data: DataConfig) -> ModelFamily:
    chat = ChatOptions(read_template(data.chat_template), data.enable_thinking)
    options = {
        "fps": data.video_fps,
        "max_frames": data.video_max_frames,
        "min_pixels": data.video_min_pixels,
        "max_pixels": data.video_max_pixels,
        "total_pixels": data.video_total_pixels,
        "image_min_pixels": data.image_min_pixels,
        "image_max_pixels": data.image_max_pixels,
    }
    return load_family(path, chat, **{k: v for k, v in options.items() if v is not None})


def media_cache(family: ModelFamily, config: Config) -> MediaCache:
    """Prepared media, each made once; in ``data.media_workers`` processes."""
    count = config.data.media_workers
    if count is None:
        count = (os.cpu_count() or 1) // CORES_PER_MEDIA_WORKER
    if count == 0:
        return MediaCache(family.prepare_media)
    load = partial(_load_prepare, config.model.path, config.data)
    return MediaCache(family.prepare_media, workers=Preparers(load, count))


def _load_prepare(path: str, data: DataConfig) -> Prepare:
    """What a process that prepares media loads for itself."""
    return _family(path, data).prepare_media
