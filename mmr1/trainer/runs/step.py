"""What one step of a run did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmr1.types import ScoredGroup, StepStats


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        stats: The line for ``metrics.jsonl``.
        advantages: One per completion, in group order.
    """

    number: int
    stats: StepStats
    scored: Sequence[ScoredGroup] = ()
    advantages: Sequence[float] = ()
