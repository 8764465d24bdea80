"""The Ray actor of a rollout engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mmr1.config import Config
from mmr1.engines import engine
from mmr1.rollout.engines import EngineSetting, abilities, transfers_weights
from mmr1.rollout.prefetching import Prefetching
from mmr1.rollout.protocol import Engine as RolloutEngine
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed.network import node_address, use_interface_of
from mmr1.trainer.distributed.weight_source import left_out
from mmr1.trainer.models.loading import feature_cache, load_model
from mmr1.types import Prompt
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache

_MOMENT_S = 0.05  # then requests that have come meanwhile are let in


class Engine:
    """The actor of one rollout engine.

    Args:
        on_machine: Engines on this machine.
    """

    def __init__(self, config: Config, on_machine: int) -> None:
        self._config, self._on_machine = config, on_machine

    def build(self, colocated: bool = False) -> None:
        """Load the model; a colocated engine then rests, and leaves the GPU to its rank."""
        use_interface_of(node_address())
        family = family_of(self._config)
        media = media_cache(family, self._config, self._on_machine)
        self._engine = build_engine_with_own_weights(self._config, family, media, colocated)
        if colocated:
            self.rest()

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See ``protocol.Engine``."""
        return self._engine.submit(requests)

    def poll(self) -> list[Finished]:
        """Return finished work when there is some, or a moment has passed."""
        return self._engine.poll(_MOMENT_S)

    def cancel(self) -> int:
        """See ``protocol.Engine``."""
        return self._engine.cancel()

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """See ``protocol.Engine``."""
        self._engine.load(weights, version)

    def call(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of ``ReceivingEngine``."""
        getattr(self._inner, method.__name__)(*args)

    def abandon_weights(self) -> None:
        """Drop the part of a broken transfer that has come."""
        if transfers_weights(self._config):
            self._inner.abandon_weight_update()

    def rest(self) -> None:
        """See ``RestingEngine``."""
        self._inner.rest()

    @property
    def _inner(self) -> Any:
        """The engine itself, which receives and rests."""
        return self._engine.engine if isinstance(self._engine, Prefetching) else self._engine

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.probe(prompts)


def build_engine_with_own_weights(
    config: Config, family: ModelFamily, media: MediaCache, colocated: bool = False
) -> RolloutEngine:
    """Build an engine that has its own copy of the weights."""
    model, features = None, None
    if "shared" in abilities(config).channels:  # on Ray from a copy
        set_up_torch(config.seed, config.trainer.threads, config.full_determinism)
        model = load_model(config.model).requires_grad_(False)
        features = feature_cache(config)
    kept = left_out(config) if colocated else ()
    setting = EngineSetting(
        config, family, media, model, features, on_ray=True, colocated=colocated, left_out=kept
    )
    built: RolloutEngine = engine.build(config.rollout.engine, setting)
    return built
