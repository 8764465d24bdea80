"""The canonical record."""

from __future__ import annotations

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.record import decode
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A record; its own id and source stay."""
    return decode(dict(row), place.root)


CANONICAL = Form(
    name="canonical",
    written_by="mmr1",
    keys=("version",),
    read=read,
)
