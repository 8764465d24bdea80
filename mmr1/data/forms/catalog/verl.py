"""verl: a chat ``prompt`` and its ``reward_model``."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    return assemble(
        row, place, turns_of(row["prompt"]), images=row.get("images"), videos=row.get("videos"),
        answer=row["reward_model"]["ground_truth"], task=row.get("ability"),
        used=("prompt", "reward_model", "ability"),
    )  # fmt: skip


FORM = Form("verl", ("prompt", "reward_model"), read)
