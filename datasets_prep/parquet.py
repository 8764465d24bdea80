"""Canonical records as parquet, with the media embedded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmr1.data.record import dump, encode, read_records
from mmr1.files import atomic_binary
from mmr1.types import MediaRef, Message, Sample, TextPart

SCHEMA = pa.schema({"id": pa.string(), "record": pa.string()})
"""The record is one column of JSON, because answers and meta have no common type."""


def write_parquet(records: Path, path: Path) -> None:
    """Write the records of a JSON Lines file as parquet, atomically."""
    with atomic_binary(path) as (file,), pq.ParquetWriter(file, SCHEMA) as writer:
        for batch in _batches(read_records(records)):
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))


def _batches(samples: list[Sample], size: int = 256) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(samples), size):
        yield [
            {"id": sample.id, "record": dump(encode(_embedded(sample), Path()))}
            for sample in samples[start : start + size]
        ]


def _embedded(sample: Sample) -> Sample:
    def embed(part: TextPart | MediaRef) -> TextPart | MediaRef:
        if isinstance(part, TextPart):
            return part
        return MediaRef(part.kind, None, part.read(), part.size, part.options)

    messages = tuple(Message(m.role, tuple(map(embed, m.parts))) for m in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
