"""Rows of JSON Lines and JSON files, plain or packed with gzip."""

from __future__ import annotations

import codecs
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mmr1.data.lines import BROKEN, not_utf8
from mmr1.data.readers.classes import Located
from mmr1.data.record import STRICT, parse_json, read_lines

LARGEST_OBJECT = 1 << 30
"""Bytes of a file that is one object. Arrays and JSON Lines may be of any size."""
# Where an object holds its rows: {"info": …, "questions": […]} and the like.
_LISTS = ("questions", "data", "rows", "records", "examples", "samples", "items", "annotations")


def json_lines(path: Path) -> Iterator[Located]:
    """One row per line. Blank lines are left out. Raises ValueError for a broken archive."""
    try:
        for number, line in read_lines(path):
            where = f"{path}:{number}"
            try:
                yield where, parse_json(line)
            except ValueError as error:
                yield where, error
    except BROKEN as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from error


def json_rows(path: Path) -> Iterator[Located]:
    """An array of rows, an object that holds one or has rows by id, one row; or JSON Lines.

    Raises:
        ValueError: The file is none of these.
    """
    if path.suffix != ".gz" and is_array(path):
        yield from ((f"{path}[{n}]", row) for n, row in enumerate(array_elements(path)))
        return
    if has_lines(path):
        yield from json_lines(path)
        return
    if path.stat().st_size > LARGEST_OBJECT:
        raise ValueError(
            f"{path} is one JSON object of {path.stat().st_size / 1e9:.1f} GB, which would have to "
            "be read into memory; write its rows as JSON Lines, for example with "
            f"jq -c '.questions[]' {path.name} > {path.stem}.jsonl"
        )
    try:
        content = parse_json(_text(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {not_utf8(error, path)}") from error
    except (ValueError, *BROKEN) as error:
        raise ValueError(f"{path}: {error}") from error
    yield from _rows(path, content)


def _rows(path: Path, content: Any) -> Iterator[Located]:
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
        raise ValueError(f"{path} is in COCO form; convert it with mmr1-data convert coco")
    inside = _inside(content)
    if isinstance(inside, list):
        for number, row in enumerate(inside):
            yield f"{path}[{number}]", row
    elif isinstance(inside, dict) and inside and all(isinstance(v, dict) for v in inside.values()):
        for name, row in inside.items():
            yield f"{path}[{name!r}]", {"id": name, **row}
    else:
        yield str(path), content


def _inside(content: Any) -> Any:
    """The list of rows in an object such as ``{"info": …, "questions": […]}``, or the content."""
    if isinstance(content, dict):
        for name in _LISTS:
            rows = content.get(name)
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                return rows
    return content


def has_lines(path: Path) -> bool:
    """True if the first line is an object and another follows: JSON Lines."""
    lines = (line for _, line in read_lines(path))
    try:
        first = next(lines, "")
        return isinstance(parse_json(first), dict) and next(lines, None) is not None
    except (ValueError, *BROKEN):  # which the reader of the whole file names
        return False


def _text(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8-sig")


BLOCK = 1 << 20
"""Bytes that are read at a time; more where one row is longer."""
_NUMBER = 1024
"""Characters that a number may have."""
_SPACE = re.compile(r"[ \t\r\n]*")
_MARK = codecs.BOM_UTF8


def is_array(path: Path) -> bool:
    """True if a file begins like a JSON array."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(_MARK).lstrip().startswith(b"[")


def array_elements(path: Path) -> Iterator[Any]:
    """The elements of an array.

    Raises:
        ValueError: The file is not an array of strict JSON in UTF-8.
    """
    with path.open("rb") as file:
        mark = file.read(len(_MARK))
        window = _Window(path, file, len(_MARK) if mark == _MARK else 0)
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


class _Window:
    """A part of the file as text, and the place in it."""

    def __init__(self, path: Path, file: BinaryIO, position: int) -> None:
        self._path, self._file = path, file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._ended = "", 0, False
        self._position = position  # of the character at ``_at``, in bytes
        file.seek(position)

    def next(self) -> str:
        """The next character that is not a space, which stays; empty at the end of the file."""
        while True:
            self._skip(_SPACE.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def expect(self, *characters: str) -> str:
        """Continue behind the next character, which must be one of these."""
        found = self.next()
        if found not in characters:
            raise self.error(f"no {' or '.join(characters)}")
        self._skip(self._at + 1)
        return found

    def value(self) -> Any:
        """The value that begins here; the place is then behind it."""
        self.next()
        while True:
            try:
                value, end = STRICT.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._may_be_cut(error) or not self._read():
                    raise self.error(error.msg) from None
                continue
            except (ValueError, RecursionError) as error:
                deep = isinstance(error, RecursionError)
                raise self.error("nested too deeply" if deep else str(error)) from None
            after = _SPACE.match(self._text, end).end()  # type: ignore[union-attr]
            ends = self._text[after : after + 1] in (",", "]") or len(self._text) - end > _NUMBER
            if ends or not self._read():  # else the value may be the beginning of a number
                self._skip(end)
                return value

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """True if reading more of the file may mend the error."""
        return error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16

    def error(self, reason: str) -> ValueError:
        """An error at this place."""
        return ValueError(f"{self._path}: not valid JSON ({reason}, byte {self._position})")

    def _skip(self, to: int) -> None:
        self._position += len(self._text[self._at : to].encode())
        self._at = to

    def _read(self) -> bool:
        """Read more, and drop the text behind the place; False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(max(BLOCK, len(self._text) - self._at))
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._path}: {not_utf8(error, self._path)}") from error
        self._text, self._at = self._text[self._at :] + text, 0
        return not self._ended
