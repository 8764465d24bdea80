"""The record of one step of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmr1.types import ScoredGroup, StepStats


@dataclass(frozen=True, slots=True)
class Step:
    """What one step sampled and logged.

    Attributes:
        number: From 1.
        stats: The line for ``metrics.jsonl``.
        scored: The groups that the step learned from.
        advantages: One per completion, in group order.
    """

    number: int
    stats: StepStats
    scored: Sequence[ScoredGroup] = ()
    advantages: Sequence[float] = ()
