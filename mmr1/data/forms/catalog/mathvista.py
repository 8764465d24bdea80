"""MathVista: multiple choice answered by the option's text, and numbers with a precision."""

from __future__ import annotations

from mmr1.data.forms.columns import images_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.question import assemble_question
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """The letter of an option, or a number whose unit and precision go into the question."""
    if row.get("answer") in (None, ""):
        raise ValueError("the answer is withheld (test split)")
    question, task = row["question"], "math"
    if not row.get("choices"):
        task = "numeric" if row.get("answer_type") in ("integer", "float") else "math"
        question += f" (in {row['unit']})" if row.get("unit") else ""
        if row.get("precision") and row.get("answer_type") == "float":
            question += f" Round to {int(row['precision'])} decimal place(s)."
    return assemble_question(
        row, place, question, str(row["answer"]), images=images_of(row), task=task,
        used=("question", "answer", "query"),
    )  # fmt: skip


FORM = Form(
    name="mathvista",
    written_by="MathVista",
    keys=("question", "answer", "answer_type"),
    read=read,
    example={
        "question": "How far is it?",
        "image": "a.png",
        "choices": None,
        "unit": "km",
        "precision": 1.0,
        "answer": "2.5",
        "answer_type": "float",
    },
)
