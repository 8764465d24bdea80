"""Which processes compute an update: a single one, or ranks whose forwards run in lockstep.

A sharded model is gathered layer by layer as it runs, so every rank must run the same layers the
same number of times. ``ProcessGroup`` gives the ranks equally many micro-batches, and adds up what
they logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.micro_batches import MicroBatch

Run = Callable[..., Any]
"""``run(compute, model, *args)`` gives ``compute(model, *args)``: a tensor, or a tuple of tensors.
Of a sharded model the parameters that belong to no layer are gathered first."""


def run_whole(compute: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """The ``Run`` of a model that is not sharded."""
    return compute(model, *args, **kwargs)


class ProcessGroup(Protocol):
    """What ranks must agree on.

    Attributes:
        saving: The group of ``torch.distributed`` that writes checkpoints, beside a step too; None
            for a single process.
        context: The ranks that share this one's sequences; None where it has whole ones.
    """

    rank: int
    size: int
    saving: Any
    context: Context | None

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This rank's micro-batches, as many as those of the rank with most.

        Empty ones are added at the end, and ``run_tower`` is set where any rank has media.
        """
        ...

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over the ranks; the largest where its name ends in ``_max``.

        Ranks that share sequences have the same numbers, which count once. A rank may lack some
        names.
        """
        ...


class SingleProcess:
    """A process without others."""

    rank, size, saving = 0, 1, None
    context: Context | None = None

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        return list(batches)

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)
