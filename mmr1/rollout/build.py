"""The rollout engine that a configuration names, and conversations over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from mmr1.config import Config, EnvironmentConfig, VllmConfig
from mmr1.data.rendering import system_prompt
from mmr1.engines import engine
from mmr1.environments.build import build_environment
from mmr1.rollout.conversations import Player
from mmr1.rollout.engines import EngineSetting, samples_together
from mmr1.rollout.protocol import Engine
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

Builder = Callable[[Config, Engine, ModelFamily, MediaCache], Engine]
"""Builds the engine of an environment, as ``EnvironmentSection.builder`` names it."""


def check_gpus(config: Config) -> None:
    """Refuse an engine that asks for more GPUs than this machine has, before anything is loaded.

    Raises:
        ValueError: ``rollout.engine.tensor_parallel_size`` is too high, or the number of stages.
    """
    vllm = config.rollout.engine
    if not isinstance(vllm, VllmConfig) or config.distributed:
        return  # on Ray, other machines may have the GPUs
    if vllm.gpus > 1 and (gpus := torch.cuda.device_count()) < vllm.gpus:
        raise ValueError(
            f"{vllm.gpus_as_set}: an engine needs that many GPUs, and this machine has {gpus}; "
            f"lower it to {max(gpus, 1)}"
        )


def build_engine(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    log: Path,
    model: Any,
    features: FeatureCache | None = None,
) -> Engine:
    """The rollout engine that ``rollout.engine`` names.

    One that samples from the policy itself samples from ``model``, and shares the ``features`` of
    its frozen vision tower.
    """
    setting = EngineSetting(config, family, media, model, features, log)
    built = engine.build(config.rollout.engine, setting)
    return with_conversations(config, built, family, media)


def with_conversations(
    config: Config, alone: Engine, family: ModelFamily, media: MediaCache
) -> Engine:
    """The engine with the environment of the configuration, if there is one, between the policy's
    turns.
    """
    if config.environment is None:
        return alone
    build: Builder = resolve_name(config.environment.builder)
    try:
        return build(config, alone, family, media)
    except BaseException:
        alone.close()
        raise


def player(config: Config, engine: Engine, family: ModelFamily, media: MediaCache) -> Player:
    """The engine with tools, or an environment of the user's own.

    Raises:
        ValueError: If the tools or the environment cannot be loaded.
    """
    assert isinstance(config.environment, EnvironmentConfig)
    return Player(
        engine,
        build_environment(config.environment, config.rollout.timeout_s, family.coordinates),
        config.environment,
        family,
        media,
        samples_together(config),
        system_prompt=system_prompt(config),
    )
