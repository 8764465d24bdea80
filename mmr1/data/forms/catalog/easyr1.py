"""EasyR1: a problem with tags, its answer, ``images`` or ``videos``."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    images = row.get("images") if row.get("images") is not None else row.get("image")
    videos = row.get("videos") if row.get("videos") is not None else row.get("video")
    turns = [("user", row["problem"])]
    return assemble(
        row, place, turns, images=images, videos=videos, answer=row["answer"], task="math",
        used=("problem", "answer"), untagged="images" not in row and "videos" not in row,
    )  # fmt: skip


FORM = Form("easyr1", ("problem", "answer"), read)
