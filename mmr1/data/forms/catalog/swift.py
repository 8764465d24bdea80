"""ms-swift's older rows: a ``query`` with its ``response``, and earlier turns in ``history``."""

from __future__ import annotations

from mmr1.data.forms.catalog import sharegpt
from mmr1.data.forms.columns import first_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """As the chat form, whose messages these columns are."""
    pairs = [*(row.get("history") or []), (row["query"], first_of(row, ("response",)))]
    messages = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
        if text is not None
    ]
    rest = {k: v for k, v in row.items() if k not in ("query", "response", "history")}
    return sharegpt.read({**rest, "messages": messages}, place)


FORM = Form(
    name="swift",
    written_by="ms-swift, query and response",
    keys=("query",),
    read=read,
    example={"query": "<image>Who?", "response": "A man.", "images": ["a.png"]},
    fits=lambda row: row.get("response") is not None or row.get("solution") is not None,
)
