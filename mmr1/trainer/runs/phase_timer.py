"""Wall seconds of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class PhaseTimer:
    """Wall seconds of each phase of a step, added up, and of the whole step."""

    phases: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        return {**self.phases, "step": time.perf_counter() - self.start}
