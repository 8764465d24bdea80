"""Files whose rows stay on the disk: read through once, and then row by row in any order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mmr1.data.index import cached_batches
from mmr1.data.lines import line_numbers, pieces, text_of
from mmr1.data.readers import files_of, kind_of, read_rows
from mmr1.data.readers.classes import classes_of, mending, with_names
from mmr1.data.readers.hub import hub_dataset, is_saved
from mmr1.data.readers.json_files import array_element, array_elements, has_lines, is_array
from mmr1.data.record import parse_json
from mmr1.progress import Progress

logger = logging.getLogger(__name__)
BATCH = 64
"""Rows of a batch of Arrow, which is read as a whole to get one of them."""
_SHIFT = 16
_PAGE = 1 << 16


class Store(Protocol):
    """One file, or one dataset of the Hub.

    Attributes:
        path: The file. Its index lies beside it.
        size: Of its content, in bytes.
    """

    path: Path
    size: int

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        """``(position, row or why it is none, bytes read so far)`` of every row, in order."""
        ...

    def row(self, position: int) -> Any:
        """The row at a position. Raises ValueError if none begins there any more."""
        ...

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        """The locations, for messages, of rows with these positions and numbers from 0."""
        ...


class LinesStore:
    """A JSON Lines file; a position is the byte where a line begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        for piece in pieces([self.path]):
            for position, line in piece.lines():
                yield position, _parsed(line, position), position

    def row(self, position: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(position)
            line = file.readline()
        return parse_json(text_of(line, position))

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        lines = line_numbers(self.path, [position for position, _ in found])
        return [f"{self.path}:{lines[position]}" for position, _ in found]


def _parsed(line: bytes, position: int) -> Any | ValueError:
    try:
        return parse_json(text_of(line, position))
    except ValueError as error:
        return error


class ArrayStore:
    """A JSON file that is an array of rows; a position is the byte where a row begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        for position, row in array_elements(self.path):
            yield position, row, position

    def row(self, position: int) -> Any:
        return array_element(self.path, position)

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        return [f"{self.path}[{number}]" for _, number in found]


class ParquetStore:
    """A parquet file; a copy beside it, not compressed, is mapped into memory.

    One row of a parquet file cannot be read without unpacking some thousands. A position is the
    number of a batch of the copy and of the row in it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        # Its column chunks are read a page at a time, not ahead.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE) as table:
            schema = _plain(table.schema_arrow)
            self._mend = mending(table.schema_arrow)
            self._batches = cached_batches(path, "copy", schema, lambda: _batches(table, schema))

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        count = self._batches.num_record_batches
        for batch in range(count):
            for number, row in enumerate(self._batches.get_batch(batch).to_pylist()):
                named = self._mend(row)
                yield (batch << _SHIFT) + number, named, self.size * batch // count

    def row(self, position: int) -> Any:
        batch, number = position >> _SHIFT, position & ((1 << _SHIFT) - 1)
        row = self._batches.get_batch(batch).slice(number, 1).to_pylist()[0]
        return self._mend(row)

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        return [f"{self.path}[{number}]" for _, number in found]


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries, which differ from batch to batch."""
    return pa.schema(
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    )


def _batches(table: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in table.iter_batches(batch_size=BATCH):
        columns = (
            column.cast(field.type) if pa.types.is_dictionary(column.type) else column
            for column, field in zip(batch.columns, schema, strict=True)
        )
        yield pa.RecordBatch.from_arrays(list(columns), schema=schema)


class PackedStore:
    """A file that can only be read from its beginning; a copy of its rows is mapped into memory.

    Packed with gzip, a table of text or a tar file. Positions are those of :class:`ParquetStore`.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        self._batches = cached_batches(
            path, "copy", _UNPACKED, lambda: _unpacked(path), of_code=True
        )

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        count = self._batches.num_record_batches
        for batch in range(count):
            content = self._batches.get_batch(batch)
            for number, (row, error) in enumerate(
                zip(content["row"].to_pylist(), content["error"].to_pylist(), strict=True)
            ):
                value = ValueError(error) if row is None else msgspec.msgpack.decode(row)
                yield (batch << _SHIFT) + number, value, self.size * batch // count

    def row(self, position: int) -> Any:
        return msgspec.msgpack.decode(self._at("row", position))

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        return [str(self._at("place", position)) for position, _ in found]

    def _at(self, column: str, position: int) -> Any:
        batch, number = position >> _SHIFT, position & ((1 << _SHIFT) - 1)
        return self._batches.get_batch(batch)[column][number].as_py()


_UNPACKED = pa.schema({"row": pa.binary(), "error": pa.string(), "place": pa.string()})


def _unpacked(path: Path) -> Iterator[pa.RecordBatch]:
    located = read_rows(path)
    with Progress(f"unpacking {path.name}", "rows") as progress:
        while block := list(islice(located, BATCH)):
            bad = [isinstance(row, ValueError) for _, row in block]
            columns = [
                [None if no else _packed(row) for no, (_, row) in zip(bad, block, strict=True)],
                [str(row) if no else None for no, (_, row) in zip(bad, block, strict=True)],
                [place for place, _ in block],
            ]
            yield pa.RecordBatch.from_pydict(
                dict(zip(_UNPACKED.names, columns, strict=True)), schema=_UNPACKED
            )
            progress.advance(len(block))


def _packed(row: Any) -> bytes:
    """A row in MessagePack, which holds bytes. Raises OverflowError beyond 64 bits."""
    return msgspec.msgpack.encode(row)


class DatasetStore:
    """A dataset of the Hub, or one that ``datasets`` saved; a position is a row's number.

    Args:
        dataset: Mapped into memory by ``datasets``, its media encoded.
        where: Its name and split.
        files: In which it lies.
    """

    def __init__(self, dataset: Any, where: str, files: Sequence[Path]) -> None:
        self._dataset, self._where = dataset, where
        self._classes = classes_of(dataset.features)
        self.path, self.size = files[0], sum(file.stat().st_size for file in files)

    def rows(self) -> Iterator[tuple[int, Any | ValueError, int]]:
        for number, row in enumerate(self._dataset):
            named = with_names(row, self._classes)
            yield number, named, self.size * number // len(self._dataset)

    def row(self, position: int) -> Any:
        return with_names(self._dataset[position], self._classes)

    def places(self, found: Sequence[tuple[int, int]]) -> list[str]:
        return [f"{self._where}[{number}]" for _, number in found]


def stores_of(spec: str | Path, from_bytes: int) -> list[Store] | None:
    """The files of a dataset whose rows can stay on the disk.

    Args:
        spec: See :func:`mmr1.data.readers.read_rows`.
        from_bytes: Smaller data have none.

    Returns:
        None for small data, and for a JSON object with the rows in it.

    Raises:
        ValueError: There is no such dataset.
    """
    if (files := files_of(spec)) is None:
        return _stores_of_dataset(spec, from_bytes)
    kinds = [_kind(path) for path in files]
    if None in kinds or sum(path.stat().st_size for path in files) < from_bytes:
        return None
    try:
        return [kind(path) for kind, path in zip(kinds, files, strict=True) if kind is not None]
    except (OSError, OverflowError, pa.ArrowException) as error:
        logger.warning("the rows of %s are held in memory: %s", spec, error)
        return None


def _kind(path: Path) -> Callable[[Path], Store] | None:
    kind = kind_of(path)
    if kind == ".jsonl":
        return LinesStore
    if kind == ".parquet":
        return ParquetStore
    if kind == ".json":
        return ArrayStore if is_array(path) else LinesStore if has_lines(path) else None
    return None if kind is None else PackedStore


def _stores_of_dataset(spec: str | Path, from_bytes: int) -> list[Store] | None:
    name, _, split = str(spec).partition("@")
    folder = Path(name)
    arrows = folder.rglob("*.arrow") if is_saved(folder) else None
    if arrows is not None and sum(path.stat().st_size for path in arrows) < from_bytes:
        return None
    dataset, where = hub_dataset(name, split or None)
    files = [Path(file["filename"]) for file in dataset.cache_files]
    return [DatasetStore(dataset, where, files)] if files else None
