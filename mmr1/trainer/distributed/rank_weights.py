"""Weights on the ranks: three kinds of ``SentWeights``, which the driver sends without reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import TransferError
from mmr1.trainer.distributed.rank_actor import SENDING, PartMethod, Rank
from mmr1.trainer.distributed.ray_calls import Actor, get, outcomes


@dataclass(frozen=True, slots=True)
class LiveWeights:
    """The weights that a method of the ranks gives when they are sent; no copy is made.

    Attributes:
        timeout_s: Longest time that a rank may take.
    """

    ranks: Sequence[Actor[Rank]]
    method: PartMethod
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        calls = [rank.start(Rank.send, self.method, list(engines), version) for rank in self.ranks]
        get(calls, self.timeout_s)

    def release(self) -> None:
        """Do nothing: no copy was made."""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """A copy in the main memory of rank 0, which is sent while the ranks learn.

    Attributes:
        timeout_s: Longest time that rank 0 may take.
    """

    first_rank: Actor[Rank]
    key: int
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        rank = self.first_rank.within(SENDING)
        get([rank.start(Rank.send_kept, self.key, list(engines), version)], self.timeout_s)

    def release(self) -> None:
        rank = self.first_rank.within(SENDING)
        get([rank.start(Rank.release, self.key)], self.timeout_s)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A copy of the adapters: small enough for Ray to bring it to the engines.

    Attributes:
        stored: Refers to those of rank 0, on its machine.
        timeout_s: Longest time that an engine may take.
    """

    stored: Any
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        calls = {
            i: engine.start(Engine.load_weights, self.stored, version)
            for i, engine in enumerate(engines)
        }
        _, lost = outcomes(calls, self.timeout_s)
        for i, why in lost.items():
            raise TransferError(f"rollout engine {i} was lost in load_weights ({why})")

    def release(self) -> None:
        """Do nothing: Ray frees the adapters when nothing refers to them."""
