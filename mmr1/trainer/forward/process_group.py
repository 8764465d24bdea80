"""Who computes an update: one process alone, or ranks that take every turn together.

A sharded model is gathered layer by layer as it runs, so every rank must run the same layers the
same number of times: ``ProcessGroup`` says in which turns, and adds up what the ranks logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mmr1.trainer.forward.micro_batches import MicroBatch


@dataclass(frozen=True, slots=True)
class LockstepBatch:
    """One forward (and backward) of every rank.

    Attributes:
        micro_batch: What this rank computes; None when only other ranks have work left. It then
            runs a dummy batch.
        vision: The vision tower runs on some rank, so it must on all.
    """

    micro_batch: MicroBatch | None
    vision: bool = False


def own_micro_batch(lockstep: LockstepBatch) -> MicroBatch:
    """The batch of a turn of a process that is alone."""
    assert lockstep.micro_batch is not None, "this runs in one process"
    return lockstep.micro_batch


class ProcessGroup(Protocol):
    """What ranks must agree on."""

    rank: int
    size: int

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[LockstepBatch]:
        """The turns of this rank, as many as those of the rank with most micro-batches."""
        ...

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over the ranks; the largest where its name ends in ``_max``.

        A rank may lack some names.
        """
        ...


class SingleProcess:
    """A single process."""

    rank, size = 0, 1

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[LockstepBatch]:
        return [LockstepBatch(batch) for batch in batches]

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)
