"""Questions with several references: VQAv2, TextVQA, DocVQA, and ChartQA's lists of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1.data.forms.columns import images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.question import assemble_question
from mmr1.types import Sample

_DOCUMENT = ("docId", "doc_id", "ucsf_document_id", "ucsf_document_page_no", "data_split")
_PEOPLE = 10
"""Answers to a question of VQAv2, TextVQA, OK-VQA and VizWiz."""


def read(row: Row, place: Place) -> Sample:
    """All references are the gold, as a list of texts.

    Ten of them, or such as people gave one by one, are scored as VQAv2 scores them; those of a
    document by ANLS.
    """
    answers = references_of(row["answers"])
    return assemble_question(
        row, place, row["question"], answers, images=images_of(row), videos=videos_of(row),
        task=_task(row, answers), used=("question", "answers", "multiple_choice_answer"),
    )  # fmt: skip


def read_chart(row: Row, place: Place) -> Sample:
    """ChartQA: numbers count within 5 %."""
    return assemble_question(
        row, place, row["query"], references_of(row["label"]), images=images_of(row),
        task="relaxed", used=("query", "label"),
    )  # fmt: skip


def references_of(value: Any) -> list[str]:
    """The references of a column: texts, or mappings that hold one in ``answer``.

    Raises:
        ValueError: It holds something else, or nothing.
    """
    if isinstance(value, Mapping):  # SQuAD
        value = value.get("text")
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise ValueError(f"the answers are no list of texts: {entries!r:.60}")
    values = [entry.get("answer") if isinstance(entry, Mapping) else entry for entry in entries]
    texts = [value.strip() for value in values if isinstance(value, str)]
    if not values or len(texts) < len(values):
        raise ValueError(f"the answers are no list of texts: {entries!r:.60}")
    if not any(texts):
        raise ValueError("the answers are empty (a test split withholds them)")
    return [text for text in texts if text]


def _task(row: Row, answers: list[str]) -> str:
    if any(row.get(name) is not None for name in _DOCUMENT):
        return "anls"
    given = isinstance(row["answers"], list | tuple) and isinstance(row["answers"][0], Mapping)
    return "vqa_soft" if given or len(answers) >= _PEOPLE else "anls"


FORM = Form(
    name="vqa_references",
    written_by="VQAv2, TextVQA, OK-VQA, VizWiz",
    keys=("question", "answers"),
    read=read,
    example={
        "question": "What is it?",
        "image": "a.png",
        "answers": [{"answer": "cup", "answer_id": 1}, {"answer": "a cup", "answer_id": 2}],
    },
    variants={
        "DocVQA, InfographicVQA, ST-VQA": {
            "question": "Which year?",
            "image": "a.png",
            "docId": 4720,
            "answers": ["1998", "in 1998"],
        }
    },
)
CHART_FORM = Form(
    name="chartqa",
    written_by="ChartQA",
    keys=("query", "label"),
    read=read_chart,
    example={"query": "How much is it?", "image": "a.png", "label": ["14%"]},
    fits=lambda row: isinstance(row["label"], list),
)
