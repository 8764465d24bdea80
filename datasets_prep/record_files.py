"""Find the record files of a prepared dataset, and work on their records in all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

from mmr1.data.ids import hash64
from mmr1.data.lines import PIECE, Piece, line_numbers, pieces, text_of, total_size
from mmr1.data.plain import Find
from mmr1.data.readers import kind_of
from mmr1.data.record import decode, parse_json, refuse_lone_surrogates
from mmr1.files import sha256_of, stamp
from mmr1.machine import cores
from mmr1.parallel import in_order
from mmr1.progress import Progress
from mmr1.types import MediaRef, Sample
from mmr1.vision.paths import resolve_media

T = TypeVar("T")
_NOT_RECORDS = {"quarantine.jsonl"}
MB = 1_000_000
SMALL = 1 << 14
"""Bytes of the smallest piece: some fifty records."""


class BadRecordError(ValueError):
    """A line that is not a record, by the byte it begins at. The message is for the user."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path, self.position, self.reason = path, position, reason

    def __str__(self) -> str:
        return ": ".join(bad_line(self.path, self.position, self.reason))


def bad_line(path: Path, position: int, reason: str) -> tuple[str, str]:
    """The location of a line, as FILE:NUMBER, by the byte it begins at; and what is wrong."""
    return f"{path}:{line_numbers(path, [position])[position]}", reason


def record_files(path: Path) -> list[Path]:
    """The file itself, or every record file of a folder. Raises ValueError if there is none."""
    if path.is_file() and kind_of(path) in (".jsonl", None):
        return [path]
    files = sorted(p for p in path.glob("*.jsonl") if p.name not in _NOT_RECORDS)
    if not files:
        remedy = (
            f"; mmr1-data convert NAME --input {path} --output FOLDER writes one; data.train reads "
            "the rows as they are"
            if path.is_file() or any(kind_of(file) is not None for file in path.glob("*"))
            else ""
        )
        raise ValueError(f"{path} holds no record file (.jsonl){remedy}")
    return files


def map_pieces(
    function: Callable[..., T],
    files: Sequence[Path],
    what: str,
    extra: Iterable[tuple[Any, ...]] = repeat(()),
) -> Iterator[T]:
    """``function(piece, *extra)`` of every piece of the files, in order, on all cores.

    Args:
        function: Of a module.
        files: Record files.
        what: Said beside the progress bar.
        extra: More arguments for each piece.
    """
    total = total_size(files)
    # Several pieces for each core also where a small file names media that take long.
    todo = list(pieces(files, min(PIECE, max(SMALL, total // (8 * cores())))))
    jobs = ((piece, *more) for piece, more in zip(todo, extra, strict=False))
    with Progress(what, "MB", -(-total // MB)) as progress:
        done = 0
        for piece, result in zip(todo, in_order(function, jobs), strict=True):
            yield result
            before, done = done, done + piece.size
            progress.advance(done // MB - before // MB)


def rows_of(piece: Piece) -> Iterator[tuple[int, Any, Sample]]:
    """``(position, row, sample)`` of every record of a piece.

    Raises:
        BadRecordError: A line is not a valid record.
    """
    root, find = piece.path.parent, finder()
    for position, line in piece.lines():
        try:
            row = row_of(line, position)
            yield position, row, decode(row, root, find)
        except ValueError as error:
            raise BadRecordError(piece.path, position, str(error)) from error


def finder() -> Find:
    """Finds the files of media, each of them once. For a piece, after which they may change."""
    return lru_cache(maxsize=None)(resolve_media)


def row_of(line: bytes, position: int) -> Any:
    """A line of JSON. Raises ValueError when it is none."""
    row = parse_json(line if position else text_of(line, position))
    if b"\\u" in line:  # the only way to write half of a surrogate pair
        refuse_lone_surrogates(row)
    return row


def find_ids(piece: Piece, hashes: frozenset[int]) -> list[tuple[int, str]]:
    """``(position, id)`` of the records whose ids have one of these hashes."""
    found = []
    for position, line in piece.lines():
        try:
            name = row_of(line, position)["id"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(name, str) and hash64(name) in hashes:
            found.append((position, name))
    return found


def content_digest(ref: MediaRef) -> bytes:
    """SHA-256 of a medium's encoded bytes. A file is read once per process."""
    if ref.path is None:
        return hashlib.sha256(ref.read()).digest()
    return _file_digest(str(ref.path), stamp(ref.path))


@lru_cache(maxsize=1 << 16)
def _file_digest(path: str, _stamp: tuple[int, ...]) -> bytes:
    return sha256_of(path)
