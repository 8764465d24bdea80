"""The canonical record, as JSON or as the ``record`` column of a parquet file."""

from __future__ import annotations

import json

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.record import decode, parse_json
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A record; its own id and source stay."""
    return decode(dict(row), place.root)


def read_parquet(row: Row, place: Place) -> Sample:
    """The record in the column ``record``."""
    return decode(parse_json(row["record"]), place.root)


_RECORD = {
    "version": 1,
    "id": "7",
    "messages": [{"role": "user", "content": "<image>Find x."}],
    "images": ["a.png"],
    "answer": "5",
    "task": "math",
}

CANONICAL = Form(
    name="canonical",
    written_by="mmr1",
    keys=("version",),
    read=read,
    example=_RECORD,
)
CANONICAL_PARQUET = Form(
    name="canonical_parquet",
    written_by="mmr1, as parquet",
    keys=("id", "record"),
    read=read_parquet,
    example={"id": "7", "record": json.dumps(_RECORD)},
)
