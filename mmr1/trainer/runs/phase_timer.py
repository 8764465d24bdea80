"""Wall seconds of the phases of a step or of a start: measured, logged, named for the profiler."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function

logger = logging.getLogger(__name__)


class PhaseTimer:
    """The phases of one step, such as ``rollout`` and ``update``, or of the start of a run.

    Each phase is a line of the log at INFO, and a span ``mmr1/PHASE`` of ``torch.profiler``.

    Args:
        label: What the log says the phases belong to, such as ``step 3``.

    Attributes:
        phases: Seconds of each phase; a phase that runs twice is added up.
    """

    def __init__(self, label: str) -> None:
        self.phases: dict[str, float] = {}
        self._label = label
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        with record_function(f"mmr1/{phase}"):
            yield
        seconds = time.perf_counter() - start
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        logger.info("%s: %s took %.3f s", self._label, phase, seconds)

    def seconds(self) -> dict[str, float]:
        """The phases, and ``step``: the time since this timer was made."""
        return {**self.phases, "step": time.perf_counter() - self._start}
