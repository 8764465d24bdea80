"""The Ray actor of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_vllm_engine
from mmr1.rollout.engine import Probe, ReceivingEngine, Request, RolloutEngine
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed.network import node_address, use_interface_of
from mmr1.trainer.models.loading import feature_cache, load_model
from mmr1.types import Prompt, RolloutGroup
from mmr1.vision.build import family_of, media_cache


class Engine:
    """One rollout engine in a process of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def build(self) -> None:
        use_interface_of(node_address())
        self._engine, self._receiving = build_engine_with_own_weights(self._config)

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        return self._engine.generate(requests, sampling)

    def transfer(self, method: str, *args: Any) -> None:
        """Call a method of the ``ReceivingEngine``."""
        getattr(self._receiving, method)(*args)

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.probe(prompts)


def build_engine_with_own_weights(config: Config) -> tuple[RolloutEngine, ReceivingEngine]:
    """An engine with its own copy of the weights, for a process that holds no policy.

    The engine as it samples, and as it is sent weights.
    """
    family = family_of(config)
    media = media_cache(family, config)
    if config.rollout.engine == "hf":
        set_up_torch(config.seed, config.trainer.threads, config.trainer.deterministic)
        model = load_model(config.model).requires_grad_(False)
        own = HfEngine(model, family, media, features=feature_cache(config))
        return own, own
    engine = build_vllm_engine(config, transfer=True)
    return PrefetchingEngine(engine, media, config.rollout.deterministic), engine
