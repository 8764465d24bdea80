"""Rows of JSON Lines and JSON files, plain or packed with gzip."""

from __future__ import annotations

import codecs
import gzip
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mmr1.data.lines import BROKEN, not_utf8
from mmr1.data.readers.classes import Located
from mmr1.data.record import malformed, parse_json, read_lines

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


_MARK = codecs.BOM_UTF8
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def is_array(path: Path) -> bool:
    """True if a file begins like a JSON array."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(_MARK).lstrip().startswith(b"[")


def array_elements(path: Path) -> Iterator[Any]:
    """The elements of an array, or why one is none; decoded one at a time.

    Raises:
        ValueError: The file is not an array of strict JSON in UTF-8.
    """
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    data = data[len(_MARK) :] if data[: len(_MARK)] == _MARK else data
    try:
        elements = _ARRAY.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {malformed(error, data)}") from error
    except RecursionError:
        raise ValueError(f"{path}: JSON that is nested too deeply") from None
    for element in elements:
        try:
            text = str(element, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {not_utf8(error, path)}") from error
        try:
            yield parse_json(text)
        except ValueError as error:
            yield error
