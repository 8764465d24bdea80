"""Output to the terminal: texts without control, and failures that do not end the run.

A run outlasts many a terminal, pipe and log file. So its output may fail, and the run continues.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger(__name__)

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
