"""Rows of JSON Lines and JSON files, plain or packed with gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.data.lines import not_utf8
from mmr1.data.readers.json_arrays import array_elements, is_array
from mmr1.data.readers.located import Located
from mmr1.data.record import parse_json, read_lines

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
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from error


def json_rows(path: Path) -> Iterator[Located]:
    """An array of rows, an object that holds one or has rows by id, one row; or JSON Lines.

    Raises:
        ValueError: The file is none of these.
    """
    if path.suffix != ".gz" and is_array(path):
        yield from ((f"{path}[{n}]", row) for n, (_, row) in enumerate(array_elements(path)))
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
        raise ValueError(f"{path}: {not_utf8(error)}") from error
    except (ValueError, OSError, EOFError) as error:
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
    """Whether the first line is an object of its own and another follows: JSON Lines."""
    lines = (line for _, line in read_lines(path))
    try:
        first = next(lines, "")
        return isinstance(parse_json(first), dict) and next(lines, None) is not None
    except ValueError:
        return False


def _text(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8-sig")
