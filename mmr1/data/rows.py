"""The samples of large data, each read when it is asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mmr1.data.forms.boxes import BoxTally
from mmr1.data.forms.options import lacks_options
from mmr1.data.ids import hash64, repeated
from mmr1.data.index import cached_table
from mmr1.progress import Progress
from mmr1.types import Sample

if TYPE_CHECKING:
    from mmr1.data.stores import Store

FROM_BYTES = 16 << 20
"""Size of a file from which its samples stay on the disk. A smaller one is read in seconds."""
BLOCK = 4096
"""Samples that are read at a time to measure something of each."""

ReadRow = Callable[[Any, int], Sample]
"""From a row and its number in the file to a sample; raises ValueError if it cannot be used."""
Unread = Callable[[Any, Sample], Iterable[str]]
"""From a row and its sample to the columns that were not read."""


class Rows(Sequence[Sample]):
    """Samples of large data, by the table of :func:`open_rows`.

    Args:
        store: The rows.
        table: The ``number``, ``kinds``, ``id``, ``unread`` and ``optionless`` columns, of each
            sample.
        read: Makes a sample of a row.
    """

    def __init__(self, store: Store, table: pa.Table, read: ReadRow) -> None:
        self.store = store
        self.table = table
        self._read = read
        self._number = table["number"].to_numpy()

    def __len__(self) -> int:
        return len(self._number)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Sample | Rows:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        number = int(self._number[index])
        try:
            return self._read(self.store.row(number), number)
        except ValueError as error:
            raise ValueError(f"{self.store.place(number)}: {error}") from error

    def take(self, indices: np.ndarray) -> Rows:
        """The samples with these indices."""
        whole = len(indices) == len(self) and (indices == np.arange(len(self))).all()
        return self if whole else Rows(self.store, self.table.take(pa.array(indices)), self._read)

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
        return None if index < 0 else self.store.place(int(self._number[index]))

    def unread(self) -> list[str]:
        """The columns that were not read, in the order of the rows; no sample is read."""
        column = self.table["unread"].combine_chunks()
        words = column.dictionary.to_pylist()
        return list(dict.fromkeys(name for text in words if text for name in text.split("\0")))

    def optionless(self) -> int:
        """The number of choices whose options are not in the rows; no sample is read."""
        return int(pc.sum(self.table["optionless"]).as_py() or 0)


def ids_of(samples: Sequence[Sample]) -> list[str]:
    """The ids of samples."""
    return samples.ids() if isinstance(samples, Rows) else [sample.id for sample in samples]


def kinds_of(samples: Sequence[Sample]) -> Iterable[tuple[str, ...]]:
    """The kinds of media of samples: ``("image", "image")`` for two images."""
    if isinstance(samples, Rows):
        return samples.kinds()
    return (tuple(m.kind for m in sample.media) for sample in samples)


def open_rows(
    store: Store,
    facts: Mapping[str, Any],
    read: ReadRow,
    unread: Unread = lambda row, sample: (),
) -> tuple[Rows, int, list[tuple[str, str]]]:
    """The usable samples of large data, the number of their rows, and the unusable ones.

    The rows are read through the first time. Later their index is read, and they are trusted to
    name media that are still there.

    Args:
        store: The rows. The index lies beside their first file.
        facts: Facts that ``read`` depends on, as JSON values.
        read: Makes a sample of a row.
        unread: Names the columns that were not read.

    Returns:
        The samples; the number of rows; ``(location, reason)`` of each row that cannot be used.

    Raises:
        ValueError: An id appears twice.
    """
    facts = {**facts, "others": store.others}
    table = cached_table(store.path, "rows", facts, lambda: _table(store, read, unread))
    unusable = table.filter(table["reason"].is_valid())
    usable = table.filter(table["reason"].is_null()) if len(unusable) else table
    numbers, reasons = unusable["number"].to_pylist(), unusable["reason"].to_pylist()
    dropped = [(store.place(n), reason) for n, reason in zip(numbers, reasons, strict=True)]
    return Rows(store, usable, read), len(table), dropped


def _table(store: Store, read: ReadRow, unread: Unread) -> pa.Table:
    """A table of all rows: id and kinds of media, or why a row cannot be used."""
    hashes, boxes = array("Q"), BoxTally()
    parts: list[pa.RecordBatch] = []
    with Progress(f"checking {store.path.name}", "rows", len(store)) as progress:
        for begin in range(0, len(store), BLOCK):
            numbers = range(begin, min(begin + BLOCK, len(store)))
            facts = [_facts(store.row(number), number, read, unread, boxes) for number in numbers]
            hashes.extend(hash64(of_row["id"]) for of_row in facts if "id" in of_row)
            parts.append(pa.RecordBatch.from_pylist(facts, schema=_COLUMNS))
            progress.advance(len(facts))
    boxes.check(str(store.path))
    table = pa.Table.from_batches(parts, _COLUMNS)
    for name in ("kinds", "unread"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].combine_chunks().dictionary_encode())
    table = table.append_column("number", pa.array(np.arange(len(table))))
    _refuse_repeated(store.path, table["id"], np.asarray(hashes))
    return table


_COLUMNS = pa.schema(
    {**dict.fromkeys(("id", "reason", "kinds", "unread"), pa.string()), "optionless": pa.bool_()}
)


def _facts(row: Any, number: int, read: ReadRow, unread: Unread, boxes: BoxTally) -> dict[str, Any]:
    """The columns of a row in the table; without an id where it cannot be used."""
    try:
        if isinstance(row, ValueError):
            raise row
        sample = read(row, number)
    except ValueError as error:
        boxes.add(error)
        return {"reason": str(error)}
    boxes.add(sample)
    return {
        "id": sample.id,
        "kinds": " ".join(media.kind for media in sample.media),
        "unread": "\0".join(unread(row, sample)),
        "optionless": lacks_options(sample),
    }


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
        facts: Facts that the numbers depend on beside the file, as JSON values.
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
        samples.store.path,
        what.replace(" ", "-"),
        {**facts, "ids": of_ids, "others": samples.store.others},
        lambda: pa.table({"value": pa.array(np.fromiter(measure_all(), np.int64))}),
    )
    return table["value"].to_numpy()
