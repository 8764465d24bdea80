"""The record of one step of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.types import ScoredGroup, StepStats


@dataclass(frozen=True, slots=True)
class Step:
    """What one step sampled and logged.

    Attributes:
        number: From 1.
        stats: The line for ``metrics.jsonl``.
        scored: The groups that the step learned from.
        advantages: One per completion, in group order.
        rollout_state: Gives the state after the step's rollout; see ``Rollout``.
    """

    number: int
    stats: StepStats
    scored: Sequence[ScoredGroup] = ()
    advantages: Sequence[float] = ()
    rollout_state: Callable[[], Mapping[str, Any]] = dict
