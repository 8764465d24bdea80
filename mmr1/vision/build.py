"""The model family and the prepared media that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmr1.config import Config, DataConfig
from mmr1.vision.families.chat import ChatOptions, read_template
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from mmr1.vision.preparers import Prepare, Preparers

CORES_PER_MEDIA_WORKER = 4
"""The others train, verify and feed the engine."""


def family_of(config: Config, tools: Sequence[Mapping[str, Any]] = ()) -> ModelFamily:
    """The processor of ``model.path``, with the chat template and the media sizes of ``data``.

    Args:
        tools: JSON schemas of the tools that prompts speak of.

    Raises:
        ValueError: It cannot be loaded, or its models do not train so.
    """
    environment = config.environment
    instructions = None if environment is None else environment.instructions
    family = _family(config.model.path, config.data, tuple(tools), instructions)
    if environment is not None and not family.shares_prompts:
        raise ValueError(
            f"environment and model.path '{config.model.path}': answers of tools are not read by a "
            "model whose processor is given whole prompts; leave the environment out, or take a "
            "model that shares prompts (docs/models.md)"
        )
    lora = config.model.lora
    if lora is not None and not lora.merge and not family.shares_prompts:
        raise ValueError(
            f"model.lora.merge=false and model.path '{config.model.path}': vLLM may call its "
            "layers otherwise than transformers does; leave model.lora.merge out"
        )
    if config.resources.distributed and not family.shares_prompts:
        raise ValueError(
            f"resources.ranks={config.resources.ranks} engines={config.resources.engines}: model."
            f"path '{config.model.path}' trains by transformers' own forward, in one process only; "
            "set both to 1 (docs/models.md)"
        )
    return family


def _family(
    path: str,
    data: DataConfig,
    tools: tuple[Mapping[str, Any], ...] = (),
    instructions: str | None = None,
) -> ModelFamily:
    template = read_template(data.chat_template)
    chat = ChatOptions(template, data.enable_thinking, tools, instructions)
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
