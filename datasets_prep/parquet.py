"""Canonical records as parquet, with the media embedded."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datasets_prep.record_files import rows_of
from mmr1.data.lines import pieces
from mmr1.data.record import dump, encode
from mmr1.files import atomic_binary
from mmr1.progress import Progress
from mmr1.types import MediaRef, Message, Sample, TextPart

BATCH = 256
SCHEMA = pa.schema({"id": pa.string(), "record": pa.string()})
"""The record is one column of JSON, because answers and meta have no common type."""


def write_parquet(records: Path, path: Path) -> None:
    """Write the records of a JSON Lines file as parquet, a batch at a time."""
    with (
        atomic_binary(path) as (file,),
        pq.ParquetWriter(file, SCHEMA) as writer,
        Progress(f"writing {path.name}", "records") as progress,
    ):
        samples = (sample for piece in pieces([records]) for _, _, sample in rows_of(piece))
        while batch := [_row(sample) for sample in islice(samples, BATCH)]:
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
            progress.advance(len(batch))


def _row(sample: Sample) -> dict[str, Any]:
    return {"id": sample.id, "record": dump(encode(_embedded(sample), Path()))}


def _embedded(sample: Sample) -> Sample:
    def embed(part: TextPart | MediaRef) -> TextPart | MediaRef:
        if isinstance(part, TextPart):
            return part
        return MediaRef(part.kind, None, part.read(), part.size, part.options)

    messages = tuple(Message(m.role, tuple(map(embed, m.parts))) for m in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
