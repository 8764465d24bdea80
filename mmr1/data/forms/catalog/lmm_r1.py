"""LMM-R1 and MM-Eureka: a conversation as a JSON text."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import part_media, turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    images = row.get("image_urls") or part_media(row["message"])
    return assemble(
        row, place, turns_of(row["message"]), images=images, answer=row["answer"], task="math",
        used=("message", "answer", "question", "image_urls"),
    )  # fmt: skip


FORM = Form("lmm_r1", ("message", "answer"), read)
