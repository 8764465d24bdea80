"""EasyR1: a problem with tags, its answer, ``images`` or ``videos``; options and a system prompt,
if any.
"""

from __future__ import annotations

from mmr1.data.forms.columns import images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.question import assemble_question
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A problem without tags has its media before it."""
    return assemble_question(
        row, place, row["problem"], row["answer"], images=images_of(row), videos=videos_of(row),
        task="math", used=("problem", "answer", "system"), system=row.get("system"),
    )  # fmt: skip


FORM = Form(
    name="easyr1",
    written_by="EasyR1, EasyVideoR1",
    keys=("problem", "answer"),
    read=read,
    example={"problem": "<image>Find x.", "images": ["a.png"], "answer": "5"},
)
