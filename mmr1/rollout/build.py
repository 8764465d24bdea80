"""The rollout engine that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmr1.config import Config
from mmr1.environments.build import build_environment
from mmr1.rollout.conversations import ConversationEngine
from mmr1.rollout.engine import RolloutEngine, TurnEngine
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.rollout.vllm import Transfer, VllmEngine
from mmr1.rollout.vllm_adapters import adapter_shape
from mmr1.vision.build import family_of
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.families.loading import names_in_files
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


def check_gpus(config: Config) -> None:
    """Refuse an engine that asks for more GPUs than this machine has, before anything is loaded.

    Raises:
        ValueError: ``rollout.tensor_parallel_size`` is too high.
    """
    engine_gpus = config.rollout.tensor_parallel_size
    if config.rollout.engine != "vllm" or engine_gpus == 1 or config.resources.distributed:
        return  # on Ray, other machines may have the GPUs
    if (gpus := torch.cuda.device_count()) < engine_gpus:
        raise ValueError(
            f"rollout.tensor_parallel_size={engine_gpus}: an engine takes so many GPUs, and this "
            f"machine has {gpus}; set rollout.tensor_parallel_size={max(gpus, 1)}"
        )


def build_engine(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    log: Path,
    model: Any,
    features: FeatureCache | None = None,
) -> RolloutEngine:
    """The rollout engine that ``rollout.engine`` names.

    ``hf`` samples from ``model`` itself, and shares the ``features`` of its frozen vision tower.
    """
    if config.rollout.engine == "hf":
        own = HfEngine(model, family, media, shares_weights=True, features=features)
        return with_conversations(config, own, own, family, media)
    engine = EngineProcess(
        build_vllm_engine,
        (config, None if model is None or is_packed(family) else names_in_files(model)),
        log=log,
        threads=config.trainer.threads,
        timeout_s=config.rollout.timeout_s,
        restarts=config.rollout.max_restarts,
    )
    prefetching = PrefetchingEngine(engine, media, config.rollout.deterministic)
    return with_conversations(config, prefetching, engine, family, media)


def with_conversations(
    config: Config, engine: RolloutEngine, turns: TurnEngine, family: ModelFamily, media: MediaCache
) -> RolloutEngine:
    """The engine with the environment of the configuration, if there is one, between the policy's
    turns.

    Args:
        turns: The same engine, or the process that it lives in.
    """
    if config.environment is None:
        return engine
    at_once = config.rollout.engine == "hf" or config.rollout.deterministic
    try:
        environment = build_environment(config.environment, config.rollout.timeout_s)
    except BaseException:
        engine.close()
        raise
    return ConversationEngine(
        engine,
        turns,
        environment,
        config.environment,
        family,
        media,
        at_once,
        system_prompt=config.data.system_prompt,
    )


def build_vllm_engine(
    config: Config, names: Mapping[str, str] | None = None, transfer: Transfer | None = None
) -> VllmEngine:
    """Runs in the engine's process, which loads the processor for itself.

    Args:
        names: Of weights, where vLLM knows them by others than transformers does.
        transfer: How weights come by vLLM's own transfer.
    """
    model = config.model
    return VllmEngine(
        model.path,
        config.rollout,
        family_of(config),
        config.rollout_dtype,
        config.seed,
        model.freeze_vision_tower,
        config.gpu_memory_utilization,
        names,
        transfer,
        adapter_shape(model.lora),
    )
