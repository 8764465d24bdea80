"""Chat ``messages`` with media in ``images`` and ``videos`` (LLaMA-Factory)."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    return assemble(
        row, place, turns_of(row["messages"]), images=row.get("images"), videos=row.get("videos"),
        answer=row.get("answer"), task=row.get("task"), used=("messages", "answer", "task"),
    )  # fmt: skip


FORM = Form("sharegpt", ("messages",), read)
