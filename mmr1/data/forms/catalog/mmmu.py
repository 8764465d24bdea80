"""MMMU: a question whose text and options name the pictures ``image_1`` to ``image_7``."""

from __future__ import annotations

from mmr1.data.forms.columns import images_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.options import read_options
from mmr1.data.forms.question import assemble_question
from mmr1.data.placeholders import tags_of
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """Pictures that nothing names come first."""
    if row["answer"] in ("", "?"):
        raise ValueError("the answer is withheld (test split)")
    options = read_options(row["options"])
    images = images_of(row)
    asked = row["question"] if options is None else options.ask(row["question"])
    named = {tag.number for tag in tags_of(asked)}
    unnamed = [n for n in range(1, len(images) + 1) if n not in named]
    question = "".join(f"<image {n}>" for n in unnamed) + row["question"]
    return assemble_question(
        row, place, question, row["answer"], images=images, task="math",
        options=None if options is None else options.by_letter, used=("question", "answer"),
    )  # fmt: skip


FORM = Form(
    name="mmmu",
    written_by="MMMU, MMMU-Pro",
    keys=("question", "options", "answer", "image_1"),
    read=read,
    example={
        "question": "<image 1> Which is it?",
        "options": "['a cat', 'an ant']",
        "image_1": "a.png",
        "question_type": "multiple-choice",
        "answer": "A",
    },
)
