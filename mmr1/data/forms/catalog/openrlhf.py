"""OpenRLHF: a ``prompt``, as text or chat, and its ``label``."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """The label is the gold answer."""
    chat = read_chat(row["prompt"])
    return assemble(
        row, place, chat.turns, images=chat.images(row.get("images")), answer=row.get("label"),
        task="math", used=("prompt", "label"), untagged=True,
    )  # fmt: skip


FORM = Form(
    name="openrlhf",
    written_by="OpenRLHF",
    keys=("prompt", "label"),
    read=read,
    example={"prompt": "<image>Find x.", "images": ["a.png"], "label": "5"},
    variants={
        "OpenRLHF, a chat as JSON text": {
            "prompt": '[{"role": "user", "content": [{"type": "image", "image": "a.png"}, '
            '{"type": "text", "text": "x?"}]}]',
            "label": "5",
        }
    },
)
