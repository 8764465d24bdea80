"""The canonical record, as JSON or as the ``record`` column of a parquet file."""

from __future__ import annotations

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.record import decode, parse_json
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    return decode(dict(row), place.root)


def read_parquet(row: Row, place: Place) -> Sample:
    return decode(parse_json(row["record"]), place.root)


PARQUET_FORM = Form("canonical_parquet", ("id", "record"), read_parquet)
FORM = Form("canonical", ("version",), read)
