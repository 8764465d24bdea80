"""Weights on the ranks, as the driver has them: it has them sent to engines, and reads none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmr1.trainer.distributed.rank_actor import SENDING
from mmr1.trainer.distributed.ray_calls import get


class RankWeights(Protocol):
    """Weights that lie on the ranks."""

    def send(self, engines: Sequence[Any], version: int) -> None:
        """Rank 0 sends them to these engines, which then sample with them.

        Raises:
            TransferError: Not all engines have them.
        """
        ...

    def release(self) -> None:
        """They are not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class LiveWeights:
    """The weights that a method of the ranks gives when they are sent; no copy is made."""

    ranks: Sequence[Any]
    method: str

    def send(self, engines: Sequence[Any], version: int) -> None:
        get([rank.send.remote(self.method, list(engines), version) for rank in self.ranks])

    def release(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """A copy in the main memory of rank 0, which is sent while the ranks learn."""

    first_rank: Any
    key: int

    def send(self, engines: Sequence[Any], version: int) -> None:
        in_background = self.first_rank.send_kept.options(concurrency_group=SENDING)
        get([in_background.remote(self.key, list(engines), version)])

    def release(self) -> None:
        in_background = self.first_rank.release.options(concurrency_group=SENDING)
        get([in_background.remote(self.key)])
