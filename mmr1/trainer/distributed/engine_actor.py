"""The Ray actor of a rollout engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import BuiltEngine, assemble
from mmr1.rollout.engine import PreparedRequest, Probe, Request
from mmr1.rollout.engines import EngineSetting, engine_type
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed.network import node_address, use_interface_of
from mmr1.trainer.distributed.weight_source import left_out
from mmr1.trainer.models.loading import feature_cache, load_model
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache

_MOMENT_S = 0.05  # then turns that have come meanwhile are let in


class Engine:
    """The actor of one rollout engine.

    Args:
        on_machine: Engines on this machine.
    """

    def __init__(self, config: Config, on_machine: int) -> None:
        self._config, self._on_machine = config, on_machine

    def build(self, colocated: bool = False) -> None:
        """Load the model; a colocated engine then sleeps, and leaves the GPU to its rank."""
        use_interface_of(node_address())
        family = family_of(self._config)
        self._media = media_cache(family, self._config, self._on_machine)
        self._engine = build_engine_with_own_weights(self._config, family, self._media, colocated)
        if colocated:
            self.sleep()

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        return self._engine.rollout.generate(requests, sampling)

    def advance(
        self, requests: Mapping[int, Request], sampling: SamplingConfig
    ) -> dict[int, Completion]:
        """See ``TurnEngine``; returns when a turn has ended, or a moment has passed."""
        media = self._media
        prepared = {
            number: PreparedRequest(r, tuple(media[m] for m in r.prompt.media))
            for number, r in requests.items()
        }
        return self._engine.turns.advance(prepared, sampling, _MOMENT_S)

    def abandon(self) -> int:
        return self._engine.turns.abandon()

    def call(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of ``ReceivingEngine``."""
        assert self._engine.receiving is not None, "ranks ask for transfers_weights"
        getattr(self._engine.receiving, method.__name__)(*args)

    def abandon_weights(self) -> None:
        """Drop the part of a broken transfer that has come."""
        if self._engine.receiving is not None:
            self._engine.receiving.abandon_weight_update()

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._engine.rollout.load_weights(weights, version)

    def sleep(self) -> None:
        """See ``SleepingEngine``."""
        assert self._engine.sleeping is not None, "check_capabilities refuses it"
        self._engine.sleeping.sleep()

    def wake_up(self, tag: str) -> None:
        """See ``SleepingEngine``."""
        assert self._engine.sleeping is not None, "check_capabilities refuses it"
        self._engine.sleeping.wake_up(tag)

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.rollout.probe(prompts)


def build_engine_with_own_weights(
    config: Config, family: ModelFamily, media: MediaCache, colocated: bool = False
) -> BuiltEngine:
    """Build an engine that has its own copy of the weights."""
    model, features = None, None
    if engine_type(config).samples_from_policy:  # on Ray from a copy
        set_up_torch(config.seed, config.trainer.threads, config.full_determinism)
        model = load_model(config.model).requires_grad_(False)
        features = feature_cache(config)
    kept = left_out(config) if colocated else ()
    return assemble(
        EngineSetting(
            config, family, media, model, features, on_ray=True, colocated=colocated, left_out=kept
        )
    )
