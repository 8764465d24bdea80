"""Which processes compute an update: a single one, or ranks whose forwards run in lockstep.

A sharded model is gathered layer by layer as it runs, so every rank must run the same layers the
same number of times. ``ProcessGroup`` gives the ranks equally many micro-batches, and adds up what
they logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mmr1.trainer.forward.micro_batches import MicroBatch


class ProcessGroup(Protocol):
    """What ranks must agree on."""

    rank: int
    size: int

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This rank's micro-batches, as many as those of the rank with most.

        Empty ones are added at the end, and ``run_tower`` is set where any rank has media.
        """
        ...

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over the ranks; the largest where its name ends in ``_max``.

        A rank may lack some names.
        """
        ...


class SingleProcess:
    """A process without others."""

    rank, size = 0, 1

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        return list(batches)

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)
