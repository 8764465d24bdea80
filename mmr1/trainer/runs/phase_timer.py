"""Wall seconds of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class PhaseTimer:
    """Wall seconds of named parts of a step, those of a part added up, and of the whole."""

    parts: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        return {**self.parts, "step": time.perf_counter() - self.start}
