"""The Ray actor of a rollout engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_vllm_engine
from mmr1.rollout.engine import Probe, Request, RolloutEngine
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.runtime import set_up_torch
from mmr1.trainer.models.loading import feature_cache, load_model
from mmr1.types import Prompt, RolloutGroup
from mmr1.vision.build import family_of, media_cache


class Engine:
    """One rollout engine in a process of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def build(self) -> None:
        self._engine = build_engine_with_own_weights(self._config)

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        return self._engine.generate(requests, sampling)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._engine.load_weights(weights, version)

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.probe(prompts)


def build_engine_with_own_weights(config: Config) -> RolloutEngine:
    """An engine with its own copy of the weights, for a process that holds no policy."""
    family = family_of(config)
    media = media_cache(family, config)
    if config.rollout.engine == "hf":
        set_up_torch(config.seed, config.trainer.threads, config.trainer.deterministic)
        model = load_model(config.model).requires_grad_(False)
        return HfEngine(model, family, media, features=feature_cache(config))
    engine = build_vllm_engine(config)
    return PrefetchingEngine(engine, media, config.rollout.deterministic)
