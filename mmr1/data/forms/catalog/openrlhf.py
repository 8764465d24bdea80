"""OpenRLHF: a ``prompt``, as text or chat, and its ``label``."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    prompt = row["prompt"]
    turns = turns_of(prompt) if prompt.lstrip().startswith("[{") else [("user", prompt)]
    return assemble(
        row, place, turns, images=row.get("images"), answer=row.get("label"), task="math",
        used=("prompt", "label"), untagged=True,
    )  # fmt: skip


FORM = Form("openrlhf", ("prompt", "label"), read)
