"""One step of a run: its record, and the wall seconds of its phases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.profiler import record_function

from mmr1.progress import LONG_S, doing
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.types import ScoredGroup, StepStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step sampled and logged.

    Attributes:
        number: From 1.
        metrics: By name, as the line of ``metrics.jsonl``.
        scored: The groups that the step learned from.
        advantages: One per completion, in group order.
        rollout_state: Gives the state after the step's rollout; see ``sampler.Batch``.
    """

    number: int
    metrics: StepStats
    scored: Sequence[ScoredGroup] = ()
    advantages: Sequence[float] = ()
    rollout_state: Callable[[], Mapping[str, Any]] = dict


class FailedStepError(NonFiniteError):
    """An update refused its numbers; ``step`` holds what it was to learn from."""

    def __init__(self, message: str, step: Step) -> None:
        super().__init__(message)
        self.step = step


class PhaseTimer:
    """The phases of one step, such as ``rollout`` and ``update``, or of the start of a run.

    Each phase is a line of the log at INFO, and a span ``mmr1/PHASE`` of ``torch.profiler``.

    Args:
        label: What the log says the phases belong to, such as ``step 3``.
        told_after_s: A phase that takes longer is told; see :func:`mmr1.progress.doing`.

    Attributes:
        phases: Seconds of each phase; a phase that runs twice is added up.
    """

    def __init__(self, label: str, told_after_s: float = LONG_S) -> None:
        self.phases: dict[str, float] = {}
        self._label, self._told_after_s = label, told_after_s
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        with record_function(f"mmr1/{phase}"), doing(phase, self._label, self._told_after_s):
            yield
        seconds = time.perf_counter() - start
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        logger.info("%s: %s took %.3f s", self._label, phase, seconds)

    def seconds(self) -> dict[str, float]:
        """The phases, and ``step``: the time since this timer was made."""
        return {**self.phases, "step": time.perf_counter() - self._start}
