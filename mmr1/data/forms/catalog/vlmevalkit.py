"""VLMEvalKit tables: a picture in base64, a question, and the options in columns A, B, C, …"""

from __future__ import annotations

from mmr1.data.forms.catalog.vqa import answer_and_task
from mmr1.data.forms.columns import images_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.options import LETTERS
from mmr1.data.forms.question import assemble_question
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A hint goes before the question."""
    options = {letter: row[letter] for letter in LETTERS if letter in row}
    answer, task = answer_and_task(row["answer"])
    hint = f"{row['hint']}\n" if row.get("hint") else ""
    return assemble_question(
        row, place, hint + row["question"], answer, images=images_of(row), task=task,
        options=options, used=("question", "answer", "hint", *LETTERS),
    )  # fmt: skip


FORM = Form(
    name="vlmevalkit",
    written_by="VLMEvalKit (TSV)",
    keys=("question", "answer", "A", "B"),
    read=read,
    example={
        "index": "7",
        "image": "a.png",
        "question": "Which colour?",
        "A": "red",
        "B": "blue",
        "answer": "A",
    },
)
