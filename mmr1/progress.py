"""Progress of long work: a bar on a terminal, a line every 10 s elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

EVERY_S = 10.0


class Progress:
    """A counter of finished work, on stderr.

    Args:
        what: Printed before the count.
        unit: What is counted.
        total: The final count, if known.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done, self._last_print = 0, time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            columns = (
                TextColumn(self._what),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._unit),
                TimeRemainingColumn(elapsed_when_finished=True),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def advance(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._last_print > EVERY_S:
            self._last_print = time.monotonic()
            of = f" of {self._total:,}" if self._total else ""
            print(f"{self._what}: {self._done:,}{of} {self._unit}", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
