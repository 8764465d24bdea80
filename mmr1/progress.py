"""Progress of long work: the present activity, reported if it takes long, and bars."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mmr1.logs import printable

logger = logging.getLogger(__name__)

EVERY_S = 10.0
WAIT_S = 2.0
"""Seconds after which it is told what a person waits for."""
LONG_S = 30.0
"""Seconds after which a phase of a step is told, and a long wait is told again."""


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity: ``what`` within ``label``, such as the rollout of step 3."""

    what: str
    label: str
    begun: float
    report_after_s: float

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begun


_activities: dict[int, Activity] = {}
_numbers = count()
_longest: dict[str, float] = {}  # seconds, of what has been done before


@contextmanager
def report_activity(what: str, label: str = "", report_after_s: float = WAIT_S) -> Iterator[None]:
    """Tell displays, inside the block, that the process does this.

    Args:
        what: Such as ``reading the data``.
        label: Owner of the activity, such as ``step 3``; may be empty.
        report_after_s: Inside :func:`reporting_waits` it is reported after so many seconds.
    """
    number, activity = next(_numbers), Activity(what, label, time.monotonic(), report_after_s)
    _activities[number] = activity
    try:
        yield
    finally:
        del _activities[number]
        _longest[what] = max(_longest.get(what, 0.0), time.monotonic() - activity.begun)


def oldest_activity() -> Activity | None:
    """The activity that has lasted the longest, or None."""
    return next(iter(list(_activities.values())), None)


@contextmanager
def reporting_waits() -> Iterator[None]:
    """Report long waits inside the block, on stderr and in the log.

    An activity is told when it has taken three times as long as it ever did, and ``report_after_s``
    at least; then again each time that twice as long has passed.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_report_waits, args=[ended], name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report_waits(ended: threading.Event) -> None:
    reported: dict[int, float] = {}  # how long each activity had taken when it was last reported
    while not ended.wait(0.5):
        going_on = dict(_activities)
        reported = {number: seconds for number, seconds in reported.items() if number in going_on}
        for number, activity in going_on.items():
            if activity.seconds >= _due(activity, reported.get(number)):
                reported[number] = activity.seconds
                _report(activity)


def _due(activity: Activity, reported: float | None) -> float:
    usual = 3 * _longest.get(activity.what, 0.0)
    return max(usual, activity.report_after_s if reported is None else max(LONG_S, 2 * reported))


def _report(activity: Activity) -> None:
    line = f"{activity.label}: {activity.what}" if activity.label else activity.what
    line += f", {activity.seconds:.0f} s so far" if activity.seconds >= LONG_S else " ..."
    logger.info("%s", line)
    print(printable(line), file=sys.stderr, flush=True)


class Progress:
    """A counter of finished work, on stderr: a bar on a terminal, a line every 10 s elsewhere.

    Args:
        what: Printed before the count.
        unit: Unit of the count.
        total: The final count, if known.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done, self._last_print = 0, time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            columns = (
                TextColumn(self._what, markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn(self._unit),
                TimeRemainingColumn(elapsed_when_finished=True),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=self._total)
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
