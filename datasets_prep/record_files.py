"""Find the record files of a prepared dataset, and work on their records in all processes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from mmr1.config import DataConfig
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place as FormPlace
from mmr1.data.ids import hash64
from mmr1.data.lines import PIECE, Piece, line_numbers, pieces, text_of, total_size
from mmr1.data.readers import kind_of
from mmr1.data.record import Find, decode, parse_json
from mmr1.data.sources import read_samples
from mmr1.files import sha256_of, stamp
from mmr1.machine import cores
from mmr1.parallel import in_order
from mmr1.progress import Progress
from mmr1.types import MediaRef, Sample
from mmr1.vision.paths import resolve_media

T = TypeVar("T")
MB = 1_000_000
BLOCK = 64
"""Rows that a process checks at a time, where one has to read them all."""
SMALL = 1 << 14
"""Bytes of the smallest piece: some fifty records."""


class BadRecordError(ValueError):
    """A line that is not a record, by the byte it begins at. The message is for the user."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path, self.position, self.reason = path, position, reason

    def __str__(self) -> str:
        line = line_numbers(self.path, [self.position])[self.position]
        return f"{self.path}:{line}: {self.reason}"


def record_files(path: Path) -> list[Path]:
    """The file itself, or every record file of a folder. Raises ValueError if there is none."""
    if path.is_file() and kind_of(path) in (".jsonl", None):
        return [path]
    files = sorted(p for p in path.glob("*.jsonl") if p.name != "quarantine.jsonl")
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
        function: Function of a module.
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


Part = Piece | Sequence[tuple[str, Sample | ValueError]]
"""Lines of a JSON Lines file; or of other data some rows with their locations."""
Place = int | str
"""The byte where a line begins, or the location of a row."""


def map_parts(
    function: Callable[..., T],
    path: Path,
    what: str,
    extra: Iterable[tuple[Any, ...]] = repeat(()),
) -> Iterator[tuple[Part, T]]:
    """``(part, function(part, *extra))`` of a dataset in any format that ``data.train`` reads.

    Args:
        function: Function of a module.
        path: A file or a folder, or what names a dataset.
        what: Said beside the progress bar.
        extra: More arguments for each part.
    """
    if files := _json_lines(path):
        total = total_size(files)
        size = min(PIECE, max(SMALL, total // (8 * cores())))
        parts: Iterator[Part] = iter(pieces(files, size))
    else:
        rows = read_samples(str(path), DataConfig())
        parts = iter(lambda: list(islice(rows, BLOCK)), [])
    with Progress(what, "parts") as progress:
        kept: deque[Part] = deque()

        def jobs() -> Iterator[tuple[Any, ...]]:
            for part, more in zip(parts, extra, strict=False):
                kept.append(part)
                yield (part, *more)

        for result in in_order(function, jobs()):
            yield kept.popleft(), result
            progress.advance(1)


def _json_lines(path: Path) -> list[Path]:
    """The files, if the data are JSON Lines, which several processes can read."""
    try:
        return record_files(path)
    except ValueError:
        return []


def samples_of(part: Part) -> Iterator[tuple[Place, Sample | ValueError]]:
    """``(place, sample or why it is none)`` of each row of a part, in whatever known format."""
    if not isinstance(part, Piece):
        yield from part
        return
    root, find, source = part.path.parent, finder(), part.path.stem
    for position, line in part.lines():
        try:
            row = row_of(line, position)
            own = isinstance(row, dict) and "version" in row
            place = FormPlace(root, source, position)
            yield position, decode(row, root, find) if own else _read(row, place)
        except ValueError as error:
            yield position, error


def _read(row: Any, place: FormPlace) -> Sample:
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
    return read_row(row, place)


def located(part: Part, places: Iterable[tuple[Place, str]]) -> list[tuple[str, str]]:
    """``(FILE:LINE or another location, text)`` of places in a part."""
    found = list(places)
    if not isinstance(part, Piece):
        return [(str(place), text) for place, text in found]
    lines = line_numbers(part.path, [int(place) for place, _ in found])
    return [(f"{part.path}:{lines[int(place)]}", text) for place, text in found]


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
    """Parse a line of JSON. Raises ValueError if the line is not JSON."""
    return parse_json(line if position else text_of(line, position))


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
