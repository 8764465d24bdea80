"""The Ray actor of a rollout engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_vllm_engine
from mmr1.rollout.engine import (
    PreparedRequest,
    Probe,
    ReceivingEngine,
    Request,
    RolloutEngine,
    SleepingEngine,
    TurnEngine,
)
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.rollout.vllm import Transfer
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed.network import node_address, use_interface_of
from mmr1.trainer.distributed.weight_source import left_out
from mmr1.trainer.models.loading import feature_cache, load_model
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.prepare import MediaCache

_MOMENT_S = 0.05  # then turns that have come meanwhile are let in


class Engine:
    """One rollout engine in a process of its own.

    Args:
        on_machine: Engines on this machine.
    """

    def __init__(self, config: Config, on_machine: int) -> None:
        self._config, self._on_machine = config, on_machine

    def build(self, colocated: bool = False) -> None:
        """Load the model; a colocated engine then sleeps, and leaves the GPU to its rank."""
        use_interface_of(node_address())
        self._engine = build_engine_with_own_weights(self._config, colocated, self._on_machine)
        if colocated:
            self.call(SleepingEngine.sleep)

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        return self._engine.rollout.generate(requests, sampling)

    def advance(
        self, requests: Mapping[int, Request], sampling: SamplingConfig
    ) -> dict[int, Completion]:
        """See ``TurnEngine``; returns when a turn has ended, or a moment has passed."""
        media = self._engine.media
        ended = self._engine.turns.advance(
            {
                number: PreparedRequest(r, tuple(media[m] for m in r.prompt.media))
                for number, r in requests.items()
            },
            sampling,
        )
        until = time.monotonic() + _MOMENT_S
        while not ended and time.monotonic() < until:
            ended = self._engine.turns.advance({}, sampling)
        return ended

    def abandon(self) -> None:
        self._engine.turns.abandon()

    def call(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of ``ReceivingEngine`` or ``SleepingEngine``."""
        getattr(self._engine.receiving, method.__name__)(*args)

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.rollout.probe(prompts)


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """The engine of a process that holds no policy.

    Attributes:
        rollout: As it samples completions.
        turns: As it samples the turns of conversations.
        receiving: As it is sent weights.
        media: Prepared media.
    """

    rollout: RolloutEngine
    turns: TurnEngine
    receiving: ReceivingEngine
    media: MediaCache


def build_engine_with_own_weights(config: Config, colocated: bool, on_machine: int) -> OwnEngine:
    """An engine with its own copy of the weights."""
    family = family_of(config)
    media = media_cache(family, config, on_machine)
    if config.rollout.engine == "hf":
        set_up_torch(config.seed, config.trainer.threads, config.trainer.deterministic)
        model = load_model(config.model).requires_grad_(False)
        own = HfEngine(model, family, media, features=feature_cache(config))
        return OwnEngine(own, own, own, media)
    transfer = Transfer(colocated, left_out(config) if colocated else ())
    engine = build_vllm_engine(config, transfer=transfer)
    prefetching = PrefetchingEngine(engine, media, config.rollout.deterministic)
    return OwnEngine(prefetching, engine, engine, media)
