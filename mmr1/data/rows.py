"""The samples of large data, each read when it is asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mmr1.data.ids import hash64, repeated
from mmr1.data.index import cached_table
from mmr1.data.stores import Store
from mmr1.files import stamp
from mmr1.progress import Progress
from mmr1.types import Sample

FROM_BYTES = 16 << 20
"""Size of a file from which its samples stay on the disk. A smaller one is read in seconds."""
BLOCK = 4096
"""Samples that are read at a time to measure something of each."""
MB = 1_000_000

ReadRow = Callable[[Any, int], Sample]
"""From a row and its number in the file to a sample; raises ValueError if it cannot be used."""
Unread = Callable[[Any, Sample], Iterable[str]]
"""From a row and its sample to the columns that were not read."""


class Rows(Sequence[Sample]):
    """Samples of files, by the table of :func:`open_rows`.

    Args:
        stores: The files.
        table: Their ``file``, ``position``, ``number``, ``kinds``, ``id`` and ``unread`` columns,
            of each sample.
        read: Makes a sample of a row.
    """

    def __init__(self, stores: Sequence[Store], table: pa.Table, read: ReadRow) -> None:
        self.stores = stores
        self.table = table
        self._read = read
        self._file = table["file"].to_numpy()
        self._position = table["position"].to_numpy()
        self._number = table["number"].to_numpy()

    def __len__(self) -> int:
        return len(self._position)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Sample | Rows:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        store, number = self.stores[self._file[index]], int(self._number[index])
        try:
            sample = self._read(store.row(int(self._position[index])), number)
        except ValueError as error:
            raise ValueError(f"{store.path}, row {number}, from 0: {error}") from error
        if sample.id != self.table["id"][int(index)].as_py():
            raise ValueError(f"{store.path} changed since it was opened; start again")
        return sample

    def take(self, indices: np.ndarray) -> Rows:
        """The samples with these indices."""
        whole = len(indices) == len(self) and (indices == np.arange(len(self))).all()
        return self if whole else Rows(self.stores, self.table.take(pa.array(indices)), self._read)

    def ids(self) -> list[str]:
        """The samples' ids; no sample is read."""
        names: list[str] = self.table["id"].to_pylist()
        return names

    def kinds(self) -> Iterator[tuple[str, ...]]:
        """The kinds of each sample's media, in their order; no sample is read."""
        column = self.table["kinds"].combine_chunks()
        of_code = [tuple(text.split()) for text in column.dictionary.to_pylist()]
        yield from (of_code[code] for code in column.indices.to_numpy().tolist())

    def place_of(self, name: str) -> str | None:
        """File and line of the sample with this id, for messages; None if there is none."""
        index = pc.index(self.table["id"], name).as_py()
        if index < 0:
            return None
        file = int(self._file[index])
        first = int(np.searchsorted(self._file, file))
        found = [(int(self._position[index]), int(self._number[index] - self._number[first]))]
        return self.stores[file].places(found)[0]

    def unread(self) -> list[str]:
        """The columns that were not read, in the order of the rows; no sample is read."""
        column = self.table["unread"].combine_chunks()
        words = column.dictionary.to_pylist()
        return list(dict.fromkeys(name for text in words if text for name in text.split("\0")))


def ids_of(samples: Sequence[Sample]) -> list[str]:
    """The ids of samples."""
    return samples.ids() if isinstance(samples, Rows) else [sample.id for sample in samples]


def kinds_of(samples: Sequence[Sample]) -> Iterable[tuple[str, ...]]:
    """The kinds of media of samples: ``("image", "image")`` for two images."""
    if isinstance(samples, Rows):
        return samples.kinds()
    return (tuple(m.kind for m in sample.media) for sample in samples)


def open_rows(
    stores: Sequence[Store],
    facts: Mapping[str, Any],
    read: ReadRow,
    unread: Unread = lambda row, sample: (),
) -> tuple[Rows, int, list[tuple[str, str]]]:
    """The usable samples of some files, the number of their rows, and the unusable ones.

    The files are read through the first time. Later their index is read, and they are trusted to
    name media that are still there.

    Args:
        stores: The files. The index lies beside the first.
        facts: What ``read`` depends on, as JSON values.
        read: Makes a sample of a row.
        unread: Names the columns that were not read.

    Returns:
        The samples; the number of rows; ``(location, reason)`` of each row that cannot be used.

    Raises:
        ValueError: An id appears twice.
    """
    others = _others(stores)
    facts = {**facts, "others": others}
    table = cached_table(stores[0].path, "rows", facts, lambda: _table(stores, read, unread))
    if _others(stores) != others:
        raise ValueError(f"files beside {stores[0].path} changed while they were read; start again")
    unusable = table.filter(table["reason"].is_valid())
    usable = table.filter(table["reason"].is_null()) if len(unusable) else table
    first = np.searchsorted(table["file"].to_numpy(), np.arange(len(stores)))
    dropped: list[tuple[str, str]] = []
    for file, store in enumerate(stores):
        own = unusable.filter(pc.equal(unusable["file"], file))
        numbers = own["number"].to_numpy() - first[file]
        found = list(zip(own["position"].to_pylist(), numbers.tolist(), strict=True))
        dropped += zip(store.places(found), own["reason"].to_pylist(), strict=True)
    return Rows(stores, usable, read), len(table), dropped


def _others(stores: Sequence[Store]) -> list[Any]:
    """Facts that identify the files besides the first."""
    return [[store.path.name, *stamp(store.path)[:2]] for store in stores[1:]]


def _table(stores: Sequence[Store], read: ReadRow, unread: Unread) -> pa.Table:
    """A table of all rows: place, id and kinds of media, or why a row cannot be used."""
    files, positions, hashes = array("h"), array("q"), array("Q")
    parts: list[pa.RecordBatch] = []
    total = sum(store.size for store in stores)
    with Progress(f"reading {stores[0].path.name}", "MB", -(-total // MB)) as progress:
        shown = 0
        rows = _each_row(stores)
        while block := list(islice(rows, BLOCK)):
            ids: list[str | None] = []
            kinds: list[str | None] = []
            reasons: list[str | None] = []
            left: list[str | None] = []
            for file, position, row, _ in block:
                sample, reason = _sample(read, row, len(positions))
                files.append(file)
                positions.append(position)
                reasons.append(reason)
                ids.append(None if sample is None else sample.id)
                kinds.append(None if sample is None else " ".join(m.kind for m in sample.media))
                left.append(None if sample is None else "\0".join(unread(row, sample)))
                if sample is not None:
                    hashes.append(hash64(sample.id))
            columns = {"id": pa.array(ids, pa.string()), "reason": pa.array(reasons, pa.string())}
            columns["kinds"] = pa.array(kinds, pa.string())
            columns["unread"] = pa.array(left, pa.string())
            parts.append(pa.RecordBatch.from_pydict(columns))
            before, shown = shown, block[-1][-1] // MB
            progress.advance(shown - before)
    table = pa.Table.from_batches(parts, _COLUMNS)
    for place, name in ((2, "kinds"), (3, "unread")):
        table = table.set_column(place, name, table[name].combine_chunks().dictionary_encode())
    table = table.append_column("file", pa.array(np.asarray(files)))
    table = table.append_column("position", pa.array(np.asarray(positions)))
    table = table.append_column("number", pa.array(np.arange(len(positions))))
    _refuse_repeated(stores[0].path, table["id"], np.asarray(hashes))
    return table


_COLUMNS = pa.schema(dict.fromkeys(("id", "reason", "kinds", "unread"), pa.string()))


def _each_row(stores: Sequence[Store]) -> Iterator[tuple[int, int, Any, int]]:
    """``(file, position, row, bytes read so far)`` of all rows."""
    before = 0
    for file, store in enumerate(stores):
        for position, row, done in store.rows():
            yield file, position, row, before + done
        before += store.size


def _sample(read: ReadRow, row: Any, number: int) -> tuple[Sample | None, str | None]:
    if isinstance(row, ValueError):
        return None, str(row)
    try:
        return read(row, number), None
    except ValueError as error:
        return None, str(error)


def _refuse_repeated(path: Path, ids: pa.ChunkedArray, hashes: np.ndarray) -> None:
    if not len(repeated(hashes)):
        return
    seen: set[str] = set()
    for name in ids.drop_null().to_pylist():
        if name in seen:
            raise ValueError(f"{path}: the id '{name}' appears twice; ids must be unique")
        seen.add(name)


def select(samples: Sequence[Sample], indices: np.ndarray) -> Sequence[Sample]:
    """The samples with these indices."""
    if isinstance(samples, Rows):
        return samples.take(indices)
    return [samples[index] for index in indices.tolist()]


def measured(
    samples: Sequence[Sample],
    what: str,
    facts: Mapping[str, Any],
    measure: Callable[[list[Sample]], Sequence[int]],
) -> np.ndarray:
    """A number of each sample, kept beside the file of large data.

    Args:
        samples: All samples of a dataset.
        what: A word for it, said beside the progress bar.
        facts: What the numbers depend on but the file, as JSON values.
        measure: The numbers of some samples.
    """

    def measure_all() -> Iterator[int]:
        rest = iter(samples)
        with Progress(what, "records", len(samples)) as progress:
            while block := list(islice(rest, BLOCK)):
                yield from measure(block)
                progress.advance(len(block))

    if not isinstance(samples, Rows):
        return np.fromiter(measure_all(), np.int64)
    of_ids = hashlib.sha256("\0".join(samples.ids()).encode()).hexdigest()
    table = cached_table(
        samples.stores[0].path,
        what.replace(" ", "-"),
        {**facts, "ids": of_ids, "others": _others(samples.stores)},
        lambda: pa.table({"value": pa.array(np.fromiter(measure_all(), np.int64))}),
    )
    return table["value"].to_numpy()
