"""Tables about a data file, kept beside it, so that the file is read through only once.

``.NAME.WHAT-KEY.index`` belongs to NAME. The key stands for everything that the table depends on
but the file; the file's size and time are in it. It may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmr1 import __version__
from mmr1.files import atomic_binary

logger = logging.getLogger(__name__)
SUFFIX = ".index"


def is_index(path: Path) -> bool:
    """True for a file that is a table about another."""
    return path.name.startswith(".") and path.name.endswith(SUFFIX)


def cached_table(
    path: Path, what: str, facts: Mapping[str, Any], make: Callable[[], pa.Table]
) -> pa.Table:
    """The table that ``make`` gives, from the disk if it was made before.

    Args:
        path: The file that it is about.
        what: A word for the name of the table.
        facts: JSON values; everything else that the table depends on, but the code of this package.
        make: Makes it.
    """
    file = _beside(path, what, [dict(facts), _code()])
    stamp = _stamp(path)
    if (table := _read(file, stamp)) is not None:
        return table
    table = make().replace_schema_metadata({b"stamp": stamp})
    if _stamp(path) != stamp:
        raise ValueError(f"{path} changed while it was read; start again")
    try:
        _write(file, table.schema, table.to_batches())
    except OSError as error:
        logger.warning("%s is read through again next time: %s", path, error)
    return table


def cached_batches(
    path: Path,
    what: str,
    schema: pa.Schema,
    facts: Sequence[Any],
    batches: Callable[[], Iterable[pa.RecordBatch]],
) -> pa.ipc.RecordBatchFileReader:
    """Batches about a file, of which one at a time is in memory, from the disk.

    Args:
        path: The file.
        what: A word for the name of what is kept.
        schema: Schema of the batches.
        facts: JSON values; everything else that they depend on, but the code of this package.
            Others take the place of what is kept.
        batches: Makes them.

    Raises:
        OSError: If the copy cannot be written beside the file.
    """
    file = _beside(path, what, "batches")
    stamp = _stamp(path) + json.dumps([*facts, _code()]).encode()
    if _read(file, stamp) is None:
        _write(file, schema.with_metadata({b"stamp": stamp}), batches())
    return pa.ipc.open_file(pa.memory_map(str(file)))


def _beside(path: Path, what: str, facts: Any) -> Path:
    text = json.dumps(facts, sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return path.with_name(f".{path.name}.{what}-{key}{SUFFIX}")


def _write(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with atomic_binary(file) as (out,), pa.ipc.new_file(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _stamp(path: Path) -> bytes:
    facts = path.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}".encode()


def _read(file: Path, stamp: bytes) -> pa.Table | None:
    """The table of a file, mapped into memory; None if it is of another version of its subject."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except (OSError, pa.ArrowException):
        return None
    return table if (table.schema.metadata or {}).get(b"stamp") == stamp else None


@cache
def _code() -> str:
    """A digest of this code, which identifies its version, released or not."""
    digest = hashlib.sha256(__version__.encode())
    for file in sorted(Path(__file__).parents[1].rglob("*")):
        if file.suffix in (".py", ".jinja"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
