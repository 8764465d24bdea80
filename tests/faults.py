"""What a piece of mmr1 tells as faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mmr1.logs import ROOT


class Told(logging.Handler):
    """The faults that were told, as ``(kind, count, message)``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.faults: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (kind := getattr(record, "fault", None)) is not None:
            self.faults.append((kind, record.__dict__["count"], record.getMessage()))

    def counts(self) -> dict[str, int]:
        """By kind, without messages."""
        counts: dict[str, int] = {}
        for kind, count, _ in self.faults:
            counts[kind] = counts.get(kind, 0) + count
        return counts


@contextmanager
def faults_told() -> Iterator[Told]:
    """Collect the faults that are told inside the block."""
    root, told = logging.getLogger(ROOT), Told()
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(told)
    try:
        yield told
    finally:
        root.removeHandler(told)
        root.setLevel(level)
