"""``question`` and ``answer``, with a picture, a video or options: many datasets of the hub."""

from __future__ import annotations

from typing import Any

from mmr1.data.forms.assemble import stated_task
from mmr1.data.forms.catalog.references import references_of
from mmr1.data.forms.columns import images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.question import assemble_question
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """The answer's type tells its task: yes or no, a count, a number, options or mathematics.

    Several texts are references if the row states a task, or is a caption of a region.
    """
    value = row["answer"]
    if isinstance(value, list) and len(value) > 1 and (task := _of_references(row)):
        answer: Any = references_of(value)
    else:
        answer, task = answer_and_task(value)
    return assemble_question(
        row, place, row["question"], answer, images=images_of(row), videos=videos_of(row),
        task=task, used=("question", "answer"),
    )  # fmt: skip


def _of_references(row: Row) -> str | None:
    """The task type of several references, or None where they may be parts of one answer."""
    if row.get("bbox") is not None and row.get("segmentation") is not None:  # RefCOCO of lmms-lab
        return "rouge"
    return stated_task(row)


def answer_and_task(value: Any) -> tuple[Any, str]:
    """A gold answer of a column, and the task type that its type tells.

    Raises:
        ValueError: It is a list of several answers, or empty.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return ("yes" if value else "no"), "exact"
    if isinstance(value, int):
        return value, "count"
    if isinstance(value, float):
        return value, "numeric"
    if isinstance(value, list) and len(value) > 1:
        raise ValueError(
            f"the answer {value!r:.60} is no single text or number: it may be references, of which "
            "one is enough, or parts that belong together. Say which function reads them in a "
            "column 'task' (exact, anls, vqa_soft, relaxed, rouge: one is enough), or --map task=…"
        )
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the answer {value!r:.60} is no single text or number")
    return value, "math"


FORM = Form(
    name="vqa",
    written_by="MATH-Vision, NExT-GQA and other question-answer rows",
    keys=("question", "answer"),
    read=read,
    example={"question": "How many?", "image": "a.png", "answer": 4},
    variants={
        "MATH-Vision": {
            "question": "Which? <image1>",
            "options": ["one", "two"],
            "image": "a.png",
            "answer": "B",
        }
    },
)
