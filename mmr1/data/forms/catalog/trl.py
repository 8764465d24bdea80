"""TRL: a chat ``prompt`` with ``image`` or ``images``."""

from __future__ import annotations

from mmr1.data.forms.answers import inside_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    images = row.get("images") if row.get("images") is not None else row.get("image")
    answer = next((row[k] for k in ("answer", "solution", "ground_truth") if k in row), None)
    turns = turns_of(row["prompt"])
    if isinstance(row.get("completion"), list):
        turns += turns_of(row["completion"])
    return assemble(
        row, place, turns, images=images, answer=inside_answer(answer), task=row.get("task"),
        used=("prompt", "completion", "answer", "solution", "ground_truth", "task"), untagged=True,
    )  # fmt: skip


FORM = Form("trl", ("prompt",), read)
