"""Who computes an update: one process alone, or ranks that take every turn together.

A sharded model is gathered layer by layer as it runs, so every rank must run the same layers the
same number of times: ``Team`` says in which turns, and adds up what the ranks logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mmr1.trainer.forward.micro_batches import MicroBatch


@dataclass(frozen=True, slots=True)
class Turn:
    """One forward (and backward) of every rank.

    Attributes:
        batch: What this rank computes; None when only others have something left, and this one
            just keeps them company.
        vision: The vision tower runs on some rank, so it must on all.
    """

    batch: MicroBatch | None
    vision: bool = False


def only_batch(turn: Turn) -> MicroBatch:
    """The batch of a turn of a process that is alone."""
    assert turn.batch is not None, "this runs in one process"
    return turn.batch


class Team(Protocol):
    """What ranks must agree on."""

    rank: int
    size: int

    def turns(self, batches: Sequence[MicroBatch]) -> list[Turn]:
        """The turns of this rank, as many as those of the rank with most micro-batches."""
        ...

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over the ranks; the largest where its name ends in ``_max``.

        A rank may lack some names.
        """
        ...


class Alone:
    """A single process."""

    rank, size = 0, 1

    def turns(self, batches: Sequence[MicroBatch]) -> list[Turn]:
        return [Turn(batch) for batch in batches]

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)
