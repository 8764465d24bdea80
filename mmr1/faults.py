"""Faults that a run goes on after: each is a line of the log, and is counted by its kind.

Counts go the way of the log. So every layer can tell a fault, and the log explains every count.
``summary.json`` of a run holds the counts (``mmr1/trainer/runs/output.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable


def tell_fault(
    logger: logging.Logger, kind: str, message: str, count: int = 1, level: int = logging.WARNING
) -> None:
    """Log a fault and have it counted.

    Args:
        logger: The module's.
        kind: Slash-separated like the name of a metric, such as ``engine/died``.
        message: What happened and what becomes of it.
        count: How often it happened.
        level: INFO for what a run may have many of; WARNING goes to the terminal too.
    """
    logger.log(level, "%s", message, extra={"fault": kind, "count": count})


class FaultCounter(logging.Handler):
    """Counts the faults that are told while it is attached to the logger ``mmr1``.

    Args:
        changed: Called after each count, in the thread that told the fault.

    Attributes:
        counts: By kind.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._changed = changed

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's lock, by any thread."""
        if (kind := getattr(record, "fault", None)) is not None:
            self.counts[kind] += record.__dict__["count"]
            self._changed()
