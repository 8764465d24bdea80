"""The log and the output of a command: the log is on the terminal and in ``train.log``.

Modules log with ``logging.getLogger(__name__)``. The display and the results are printed instead.
Faults that a run survives are lines of the log, and are counted by their kind: counts take the way
of the log, so every layer can report a fault, and the log explains every count of ``summary.json``
(``mmr1/trainer/runs/output.py``).

A run outlasts many a terminal, pipe and log file. So its output may fail, and the run continues.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger(__name__)

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
    handler.setFormatter(logging.Formatter(FORMAT))
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
    handler.setFormatter(logging.Formatter(FORMAT))
    level = root.level
    root.setLevel(min(level or logging.INFO, logging.INFO))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


class _TerminalLog(logging.Handler):
    """Prints to what stderr is at the time: a live line takes it over while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record)), file=sys.stderr, flush=True)


class _FileLog(logging.Handler):
    """Opens its file for every record, because a run outlasts many a clean-up of folders."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(self.format(record))
        with suppress(OSError), self._path.open("ab") as file:
            file.write(f"{line}\n".encode(errors="backslashreplace"))


def report_fault(
    logger: logging.Logger, kind: str, message: str, count: int = 1, level: int = logging.WARNING
) -> None:
    """Log a fault, and count it.

    Args:
        logger: The module's.
        kind: Slash-separated like the name of a metric, such as ``engine/died``.
        message: Fault, and what becomes of it.
        count: How often it happened.
        level: INFO for what a run may have many of; WARNING goes to the terminal too.
    """
    logger.log(level, "%s", message, extra={"fault": kind, "count": count})


class FaultCounter(logging.Handler):
    """Counts the faults that are reported while it is attached to the logger ``mmr1``.

    Args:
        changed: Called after each count, in the thread that told the fault.

    Attributes:
        counts: Number of faults by kind.
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


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def printable(text: str) -> str:
    r"""The text with its control characters escaped: a message of a plugin cannot move the cursor.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@contextmanager
def failing_output_muted(*streams: str) -> Iterator[None]:
    """Drop output that cannot be written, inside the block, with one warning.

    A closed pipe or terminal, a full disk. What is raised otherwise ends the run that printed.
    Where an outer block has muted a stream, the warning is given again: a log that was opened
    since then has it too.

    Args:
        streams: ``stdout``, ``stderr`` or, left out, both.
    """
    before: dict[str, Any] = {}
    for name in streams or ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _Muting):
            stream.tell()
        else:
            before[name] = stream
            setattr(sys, name, _Muting(stream or _nowhere(), name))
    try:
        yield
    finally:
        for name, stream in before.items():
            with suppress(AttributeError):  # another proxy took its place, and has no such method
                getattr(sys, name).flush()
            setattr(sys, name, stream)


class _Muting:
    """A text stream that passes everything on until a write fails."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._error: Exception | None = None

    def write(self, text: str) -> int:
        if self._error is None:
            try:
                self._write(text)
            except (OSError, ValueError) as error:  # ValueError: somebody has closed it
                self._mute(error)
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._mute(error)
            except ValueError:  # somebody has closed it: nothing is left to write
                pass

    def tell(self) -> None:
        """Warn if it is muted."""
        if self._error is not None:
            logger.warning(
                "%s cannot be written to any more (%s); the run continues without it",
                self._name,
                self._error,
            )

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:  # a lone surrogate, or a terminal that has few characters
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _mute(self, error: Exception) -> None:
        """Drop output from now on, also Python's buffer, which would fail again at exit."""
        self._error = error
        with suppress(OSError, ValueError), _nowhere() as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        self.tell()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")
