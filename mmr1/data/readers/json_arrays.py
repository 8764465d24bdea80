"""A JSON array row by row: what is held is a block of the file, however long the array is."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mmr1.data.lines import not_utf8
from mmr1.data.record import STRICT

BLOCK = 1 << 20
"""Bytes that are read at a time; more where one row is longer."""
ELEMENT = 1 << 14
"""Bytes that are read at first to get one row."""
_NUMBER = 1024
"""Characters that a number may have."""
_SPACE = re.compile(r"[ \t\r\n]*")
_MARK = codecs.BOM_UTF8


def is_array(path: Path) -> bool:
    """Whether a file begins as a JSON array does."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(_MARK).lstrip().startswith(b"[")


def array_elements(path: Path) -> Iterator[tuple[int, Any]]:
    """``(position of its first byte, value)`` of the elements of an array.

    Raises:
        ValueError: The file is not an array of strict JSON in UTF-8.
    """
    with path.open("rb") as file:
        mark = file.read(len(_MARK))
        window = _Window(path, file, len(_MARK) if mark == _MARK else 0, BLOCK)
        window.expect("[")
        if window.next() == "]":
            window.expect("]")
        else:
            while True:
                yield window.value()
                if window.expect(",", "]") == "]":
                    break
        if window.next():
            raise window.error("there is more after the array")


def array_element(path: Path, position: int) -> Any:
    """The element that begins at this byte. Raises ValueError if none does."""
    with path.open("rb") as file:
        return _Window(path, file, position, ELEMENT).value()[1]


class _Window:
    """A part of the file as text, and the place in it."""

    def __init__(self, path: Path, file: BinaryIO, position: int, block: int) -> None:
        self._path, self._file, self._block = path, file, block
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._ended = "", 0, False
        self._position = position  # of the character at ``_at``, in bytes
        file.seek(position)

    def next(self) -> str:
        """The next character that is no space, which stays; empty at the end of the file."""
        while True:
            self._skip(_SPACE.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def expect(self, *characters: str) -> str:
        """Go on behind the next character, which must be one of these."""
        found = self.next()
        if found not in characters:
            raise self.error(f"no {' or '.join(characters)}")
        self._skip(self._at + 1)
        return found

    def value(self) -> tuple[int, Any]:
        """``(position, value)`` of the value that begins here; the place is then behind it."""
        self.next()
        while True:
            try:
                value, end = STRICT.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._may_be_cut(error) or not self._read():
                    raise self.error(error.msg) from None
                continue
            except ValueError as error:
                raise self.error(str(error)) from None
            after = _SPACE.match(self._text, end).end()  # type: ignore[union-attr]
            ends = self._text[after : after + 1] in (",", "]") or len(self._text) - end > _NUMBER
            if ends or not self._read():  # else the value may be the beginning of a number
                position = self._position
                self._skip(end)
                return position, value

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more of the file may mend the error."""
        return error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16

    def error(self, reason: str) -> ValueError:
        """An error at this place."""
        return ValueError(f"{self._path}: not valid JSON ({reason}, byte {self._position})")

    def _skip(self, to: int) -> None:
        self._position += len(self._text[self._at : to].encode())
        self._at = to

    def _read(self) -> bool:
        """Read on, and forget what lies behind the place; False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(max(self._block, len(self._text) - self._at))
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._path}: {not_utf8(error)}") from error
        self._text, self._at = self._text[self._at :] + text, 0
        return not self._ended
