"""The rollout engine that a configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.rollout.engine import RolloutEngine
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.rollout.vllm import VllmEngine
from mmr1.vision.build import family_of
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


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
        return HfEngine(model, family, media, shares_weights=True, features=features)
    engine = EngineProcess(
        build_vllm_engine,
        (config,),
        log=log,
        threads=config.trainer.threads,
        timeout_s=config.rollout.timeout_s,
        restarts=config.rollout.max_restarts,
    )
    return PrefetchingEngine(engine, media, config.rollout.deterministic)


def build_vllm_engine(config: Config) -> VllmEngine:
    """Runs in the engine's process, which loads the processor for itself."""
    model, dtype = config.model, config.rollout_dtype
    return VllmEngine(
        model.path, config.rollout, family_of(config), dtype, config.seed, model.freeze_vision_tower
    )
