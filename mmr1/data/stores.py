"""Rows of large data that stay on the disk: written once as Arrow, and then mapped into memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from mmr1.data.index import cached_batches
from mmr1.data.readers import files_of, kind_of, read_rows
from mmr1.data.readers.classes import classes_of, with_names
from mmr1.data.readers.hub import hub_dataset, is_saved
from mmr1.data.readers.json_files import has_lines, is_array
from mmr1.files import stamp
from mmr1.progress import Progress

logger = logging.getLogger(__name__)
BATCH = 64
"""Rows of a batch of Arrow, which is read as a whole to get one of them."""


class Store(Protocol):
    """The rows of some files, or of a dataset of the Hub.

    Attributes:
        path: The first file. The indices lie beside it.
        others: Facts that identify the files besides the first.
    """

    path: Path
    others: list[Any]

    def __len__(self) -> int: ...

    def row(self, number: int) -> Any | ValueError:
        """The row with this number, from 0, or why it is none."""
        ...

    def place(self, number: int) -> str:
        """The location of a row, for messages."""
        ...


class PackedStore:
    """Files of any kind, whose rows are copied once into a file of Arrow beside the first.

    A copy has the rows in MessagePack, which holds bytes and rows of any columns.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.path, *others = files
        self.others = [[path.name, *stamp(path)[:2]] for path in others]
        what = f"copy-of-{len(files)}"
        self._batches = cached_batches(
            self.path, what, _PACKED, self.others, lambda: _packed(files)
        )
        last = self._batches.num_record_batches - 1
        in_last = self._batches.get_batch(last).num_rows if last >= 0 else BATCH
        self._count = BATCH * last + in_last

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> Any | ValueError:
        row = self._at("row", number)
        return ValueError(self._at("error", number)) if row is None else msgspec.msgpack.decode(row)

    def place(self, number: int) -> str:
        return str(self._at("place", number))

    def _at(self, column: str, number: int) -> Any:
        return self._batches.get_batch(number // BATCH)[column][number % BATCH].as_py()


_PACKED = pa.schema({"row": pa.binary(), "error": pa.string(), "place": pa.string()})


def _packed(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    located = (of_file for path in files for of_file in read_rows(path))
    with Progress(f"reading {files[0].name}", "rows") as progress:
        while block := list(islice(located, BATCH)):
            rows = [{"place": place, **_encoded(row)} for place, row in block]
            yield pa.RecordBatch.from_pylist(rows, schema=_PACKED)
            progress.advance(len(block))


def _encoded(row: Any | ValueError) -> dict[str, Any]:
    """A row in MessagePack, or why it is none. Raises OverflowError beyond 64 bits."""
    if isinstance(row, ValueError):
        return {"error": str(row)}
    return {"row": msgspec.msgpack.encode(row)}


class DatasetStore:
    """A dataset of the Hub, or one that ``datasets`` saved: it is in files of Arrow already.

    Args:
        dataset: Mapped into memory by ``datasets``, its media encoded.
        where: Its name and split.
    """

    def __init__(self, dataset: Any, where: str) -> None:
        self._dataset, self._where = dataset, where
        self._classes = classes_of(dataset.features)
        self.path, *others = [Path(file["filename"]) for file in dataset.cache_files]
        self.others = [[path.name, *stamp(path)[:2]] for path in others]

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, number: int) -> Any:
        return with_names(self._dataset[number], self._classes)

    def place(self, number: int) -> str:
        return f"{self._where}[{number}]"


def store_of(spec: str | Path, from_bytes: int) -> Store | None:
    """The rows of a dataset, if they can stay on the disk.

    Args:
        spec: See :func:`mmr1.data.readers.read_rows`.
        from_bytes: Smaller data have none.

    Returns:
        None for small data, and for a JSON object with the rows in it.

    Raises:
        ValueError: If the dataset does not exist.
    """
    if (files := files_of(spec)) is None:
        return _store_of_dataset(spec, from_bytes)
    if sum(path.stat().st_size for path in files) < from_bytes or any(map(_is_object, files)):
        return None
    try:
        return PackedStore(files)
    except (OSError, OverflowError, pa.ArrowException) as error:
        logger.warning("the rows of %s are held in memory: %s", spec, error)
        return None


def _is_object(path: Path) -> bool:
    return kind_of(path) == ".json" and not is_array(path) and not has_lines(path)


def _store_of_dataset(spec: str | Path, from_bytes: int) -> Store | None:
    name, _, split = str(spec).partition("@")
    folder = Path(name)
    arrows = folder.rglob("*.arrow") if is_saved(folder) else None
    if arrows is not None and sum(path.stat().st_size for path in arrows) < from_bytes:
        return None
    dataset, where = hub_dataset(name, split or None)
    return DatasetStore(dataset, where) if dataset.cache_files else None
