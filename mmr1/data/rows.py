"""The samples of a large JSON Lines file, each read when it is asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from mmr1.data.ids import hash64, repeated
from mmr1.data.index import kept_table
from mmr1.data.lines import line_numbers, pieces, text_of
from mmr1.data.record import parse_json
from mmr1.progress import Progress
from mmr1.types import Sample

FROM_BYTES = 16 << 20
"""Size of a file from which its samples stay on the disk. A smaller one is read in seconds."""
BLOCK = 4096
"""Samples that are read at a time to measure something of each."""
MB = 1_000_000

ReadRow = Callable[[Any, int], Sample]
"""From a row and its number in the file to a sample; raises ValueError if it cannot be used."""


class Rows(Sequence[Sample]):
    """Samples of a file, by the table of :func:`open_rows`.

    Args:
        path: The file.
        table: Its ``position``, ``number``, ``kinds`` and ``id``, a row for each sample.
        read: Makes a sample of a row.
    """

    def __init__(self, path: Path, table: pa.Table, read: ReadRow) -> None:
        self.path = path
        self.table = table
        self._read = read
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
        position = int(self._position[index])
        with self.path.open("rb") as file:
            file.seek(position)
            line = file.readline()
        try:
            sample = self._read(parse_json(text_of(line, position)), int(self._number[index]))
        except ValueError as error:
            raise ValueError(f"{self.path}, byte {position}: {error}") from error
        if sample.id != self.table["id"][int(index)].as_py():
            raise ValueError(f"{self.path} changed since it was opened; start again")
        return sample

    def take(self, indices: np.ndarray) -> Rows:
        """The samples with these indices."""
        whole = len(indices) == len(self) and (indices == np.arange(len(self))).all()
        return self if whole else Rows(self.path, self.table.take(pa.array(indices)), self._read)

    def ids(self) -> list[str]:
        """The samples' ids; no sample is read."""
        names: list[str] = self.table["id"].to_pylist()
        return names

    def kinds(self) -> Iterator[tuple[str, ...]]:
        """The kinds of each sample's media, in their order; no sample is read."""
        column = self.table["kinds"].combine_chunks()
        of_code = [tuple(text.split()) for text in column.dictionary.to_pylist()]
        yield from (of_code[code] for code in column.indices.to_numpy().tolist())


def ids_of(samples: Sequence[Sample]) -> list[str]:
    """The ids of samples."""
    return samples.ids() if isinstance(samples, Rows) else [sample.id for sample in samples]


def kinds_of(samples: Sequence[Sample]) -> Iterable[tuple[str, ...]]:
    """The kinds of media of samples: ``("image", "image")`` for two images."""
    if isinstance(samples, Rows):
        return samples.kinds()
    return (tuple(m.kind for m in sample.media) for sample in samples)


def open_rows(
    path: Path, facts: Mapping[str, Any], read: ReadRow
) -> tuple[Rows, int, list[tuple[str, str]]]:
    """The usable samples of a JSON Lines file, the number of its rows, and the unusable ones.

    The file is read through the first time. Later its index is read, and the file is trusted to
    name media that are still there.

    Args:
        path: The file.
        facts: What ``read`` depends on, as JSON values.
        read: Makes a sample of a row.

    Returns:
        The samples; the number of rows; ``(location, reason)`` of each row that cannot be used.

    Raises:
        ValueError: An id appears twice.
    """
    table = kept_table(path, "rows", facts, lambda: _table(path, read))
    unusable = table.filter(table["reason"].is_valid())
    usable = table.filter(table["reason"].is_null()) if len(unusable) else table
    dropped = []
    if len(unusable):
        lines = line_numbers(path, unusable["position"].to_pylist())
        for position, reason in zip(
            unusable["position"].to_pylist(), unusable["reason"].to_pylist(), strict=True
        ):
            dropped.append((f"{path}:{lines[position]}", reason))
    return Rows(path, usable, read), len(table), dropped


def _table(path: Path, read: ReadRow) -> pa.Table:
    """Of every row where it begins, its id and kinds of media, or why it cannot be used."""
    positions, hashes = array("q"), array("Q")
    parts: list[pa.RecordBatch] = []
    with Progress(f"reading {path.name}", "MB", -(-path.stat().st_size // MB)) as progress:
        done = 0
        for piece in pieces([path]):
            ids: list[str | None] = []
            kinds: list[str | None] = []
            reasons: list[str | None] = []
            for position, line in piece.lines():
                sample, reason = _sample(read, line, position, len(positions))
                positions.append(position)
                reasons.append(reason)
                ids.append(None if sample is None else sample.id)
                kinds.append(None if sample is None else " ".join(m.kind for m in sample.media))
                if sample is not None:
                    hashes.append(hash64(sample.id))
            columns = {"id": pa.array(ids, pa.string()), "reason": pa.array(reasons, pa.string())}
            columns["kinds"] = pa.array(kinds, pa.string())
            parts.append(pa.RecordBatch.from_pydict(columns))
            before, done = done, done + piece.size
            progress.advance(done // MB - before // MB)
    table = pa.Table.from_batches(parts)
    table = table.set_column(2, "kinds", table["kinds"].combine_chunks().dictionary_encode())
    table = table.append_column("position", pa.array(np.asarray(positions)))
    table = table.append_column("number", pa.array(np.arange(len(positions))))
    _refuse_repeated(path, table["id"], np.asarray(hashes))
    return table


def _sample(
    read: ReadRow, line: bytes, position: int, number: int
) -> tuple[Sample | None, str | None]:
    try:
        return read(parse_json(text_of(line, position)), number), None
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
    table = kept_table(
        samples.path,
        what.replace(" ", "-"),
        {**facts, "ids": of_ids},
        lambda: pa.table({"value": pa.array(np.fromiter(measure_all(), np.int64))}),
    )
    return table["value"].to_numpy()
