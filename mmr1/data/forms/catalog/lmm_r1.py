"""LMM-R1 and MM-Eureka: a conversation as a JSON text, which names its pictures."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """The question is in the conversation; the column ``question`` repeats it."""
    chat = read_chat(row["message"])
    return assemble(
        row, place, chat.turns, images=row.get("image_urls") or chat.images(None),
        videos=chat.videos(None), answer=row["answer"], task="math",
        used=("message", "answer", "question", "image_urls"),
    )  # fmt: skip


FORM = Form(
    name="lmm_r1",
    written_by="LMM-R1, MM-Eureka",
    keys=("message", "answer"),
    read=read,
    example={
        "message": '[{"role": "user", "content": [{"type": "image", "image": "a.png"}, '
        '{"type": "text", "text": "Find x."}]}]',
        "answer": "$\\boxed{5}$",
    },
)
