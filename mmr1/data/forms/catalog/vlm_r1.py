"""VLM-R1, LLaVA: ``conversations`` of turns with ``from`` and ``value``."""

from __future__ import annotations

from mmr1.data.forms.answers import ANSWER, inside_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    turns = turns_of(row["conversations"])
    images = row.get("image_urls") or row.get("image") or row.get("images")
    reply = turns[-1][1] if turns and turns[-1][0] == "assistant" else ""
    # A long reply without the tag is a demonstration and holds no gold answer.
    short = reply if 0 < len(reply) <= 200 else None
    answer = row.get("answer", inside_answer(reply) if ANSWER.search(reply) else short)
    return assemble(
        row, place, turns, images=images, videos=row.get("video"), answer=answer,
        task=None if answer is None else "math",
        used=("conversations", "answer", "image_urls"), untagged=True,
    )  # fmt: skip


FORM = Form("vlm_r1", ("conversations",), read)
