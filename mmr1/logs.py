"""The log of a command: records for the terminal, and for the run's ``train.log``.

Modules log with ``logging.getLogger(__name__)``. The display and the results are printed instead.
Faults that a run survives are lines of the log, and are counted by their kind: counts take the way
of the log, so every layer can report a fault, and the log explains every count of ``summary.json``
(``mmr1/trainer/runs/output.py``).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from mmr1.terminal import printable

ROOT = "mmr1"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """Values of ``--log-level``."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_to_terminal(level: LogLevel) -> None:
    """Send mmr1's records of ``level`` and above to stderr, in place of an earlier call's."""
    root = logging.getLogger(ROOT)
    for handler in [h for h in root.handlers if isinstance(h, _TerminalLog)]:
        root.removeHandler(handler)
    handler = _TerminalLog()
    handler.setLevel(level.upper())
    handler.setFormatter(_Printable(FORMAT))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if level is LogLevel.DEBUG else logging.INFO)
    root.propagate = False


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append mmr1's records of INFO and above to a file inside the block.

    Records that cannot be written are dropped: on a full disk the run itself says so. A file that
    was removed is made again.

    Raises:
        OSError: The file cannot be made.
    """
    path.open("a").close()
    root = logging.getLogger(ROOT)
    handler = _FileLog(path)
    handler.setLevel(logging.INFO)
    handler.setFormatter(_Printable(FORMAT))
    level = root.level
    root.setLevel(min(level or logging.INFO, logging.INFO))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


class _Printable(logging.Formatter):
    """Escapes control characters, which plugins and files may hold; logs are read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _TerminalLog(logging.Handler):
    """Prints to what stderr is at the time: a live line takes it over while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


class _FileLog(logging.Handler):
    """Opens its file for every record, because a run outlasts many a clean-up of folders."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        with suppress(OSError), self._path.open("ab") as file:
            file.write(f"{line}\n".encode(errors="backslashreplace"))


def report_fault(
    logger: logging.Logger, kind: str, message: str, count: int = 1, level: int = logging.WARNING
) -> None:
    """Log a fault, and count it.

    Args:
        logger: The module's.
        kind: Slash-separated like the name of a metric, such as ``engine/died``.
        message: What happened and what becomes of it.
        count: How often it happened.
        level: INFO for what a run may have many of; WARNING goes to the terminal too.
    """
    logger.log(level, "%s", message, extra={"fault": kind, "count": count})


class FaultCounter(logging.Handler):
    """Counts the faults that are reported while it is attached to the logger ``mmr1``.

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
        """Count a fault; called under the handler's lock, by any thread."""
        if (kind := getattr(record, "fault", None)) is not None:
            self.counts[kind] += record.__dict__["count"]
            self._changed()
