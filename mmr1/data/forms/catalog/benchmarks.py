"""Rows of benchmarks: MathVista, MMMU, VLMEvalKit, CLEVR, ChartQA and those of VQA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmr1.data.forms.assemble import assemble, assemble_question, stated_task
from mmr1.data.forms.columns import images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.options import LETTERS, read_options
from mmr1.data.placeholders import tags_of
from mmr1.types import Sample


# MathVista: multiple choice answered by the option's text, and numbers with a precision.
def _read_mathvista(row: Row, place: Place) -> Sample:
    """The answer is the letter of an option, or a number with its unit and precision asked for."""
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


MATHVISTA = Form(
    name="mathvista",
    written_by="MathVista",
    keys=("question", "answer", "answer_type"),
    read=_read_mathvista,
)


# MMMU: a question whose text and options name the pictures ``image_1`` to ``image_7``.
def _read_mmmu(row: Row, place: Place) -> Sample:
    """Pictures that no tag names come first."""
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


MMMU = Form(
    name="mmmu",
    written_by="MMMU, MMMU-Pro",
    keys=("question", "options", "answer", "image_1"),
    read=_read_mmmu,
)


# VLMEvalKit tables: a picture in base64, a question, and the options in columns A, B, C, …
def _read_vlmevalkit(row: Row, place: Place) -> Sample:
    """The hint, if any, goes before the question."""
    options = {letter: row[letter] for letter in LETTERS if letter in row}
    answer, task = answer_and_task(row["answer"])
    hint = f"{row['hint']}\n" if row.get("hint") else ""
    return assemble_question(
        row, place, hint + row["question"], answer, images=images_of(row), task=task,
        options=options, used=("question", "answer", "hint", *LETTERS),
    )  # fmt: skip


VLMEVALKIT = Form(
    name="vlmevalkit",
    written_by="VLMEvalKit (TSV)",
    keys=("question", "answer", "A", "B"),
    read=_read_vlmevalkit,
)


# CLEVR and Super-CLEVR: questions about scenes, whose pictures lie in ``images``.
def _read_clevr(row: Row, place: Place) -> Sample:
    """A number is a count; yes, no and words are compared literally."""
    answer = row["answer"]
    text = ("yes" if answer else "no") if isinstance(answer, bool) else str(answer)
    return assemble(
        row, place, [("user", row["question"])], images=_picture(row, place.root), answer=text,
        task="count" if text.isdigit() else "exact", used=("question", "answer"), untagged=True,
    )  # fmt: skip


def _picture(row: Row, root: Path) -> str:
    """The path of the picture: in ``images``, in its split's folder, or beside the questions."""
    name = str(row["image_filename"])
    folders = ("images", f"images/{row.get('split')}", ".")
    return next(
        (f"{folder}/{name}" for folder in folders if (root / folder / name).is_file()),
        f"images/{name}",
    )


CLEVR = Form(
    name="clevr",
    written_by="CLEVR, Super-CLEVR",
    keys=("image_filename", "question", "answer"),
    read=_read_clevr,
)


# ``question`` and ``answer``, with a picture, a video or options: many datasets of the hub.
def _read_vqa(row: Row, place: Place) -> Sample:
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
        ValueError: If the column is a list of several answers, or empty.
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
            f"the answer {value!r:.60} is not a single text or number: it may be references, of "
            "which one is enough, or parts that belong together. Say which function reads them in "
            "a column 'task' (exact, anls, vqa_soft, relaxed, rouge: one is enough), or --map "
            "task=…"
        )
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the answer {value!r:.60} is not a single text or number")
    return value, "math"


VQA = Form(
    name="vqa",
    written_by="MATH-Vision, NExT-GQA and other question-answer rows",
    keys=("question", "answer"),
    read=_read_vqa,
)


_DOCUMENT = ("docId", "doc_id", "ucsf_document_id", "ucsf_document_page_no", "data_split")
_PEOPLE = 10
"""Answers to a question of VQAv2, TextVQA, OK-VQA and VizWiz."""


# Questions with several references: VQAv2, TextVQA, DocVQA, and ChartQA's lists of one.
def _read_references(row: Row, place: Place) -> Sample:
    """All references become the gold, as a list of texts.

    Ten of them, or such as people gave one by one, are scored as VQAv2 scores them; those of a
    document by ANLS.
    """
    answers = references_of(row["answers"])
    return assemble_question(
        row, place, row["question"], answers, images=images_of(row), videos=videos_of(row),
        task=_task(row, answers), used=("question", "answers", "multiple_choice_answer"),
    )  # fmt: skip


def read_chart(row: Row, place: Place) -> Sample:
    """A row of ChartQA: numbers count within 5 %."""
    return assemble_question(
        row, place, row["query"], references_of(row["label"]), images=images_of(row),
        task="relaxed", used=("query", "label"),
    )  # fmt: skip


def references_of(value: Any) -> list[str]:
    """The references of a column: texts, or mappings that hold one in ``answer``.

    Raises:
        ValueError: If the column holds something else, or nothing.
    """
    if isinstance(value, Mapping):  # SQuAD
        value = value.get("text")
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise ValueError(f"the answers are not a list of texts: {entries!r:.60}")
    values = [entry.get("answer") if isinstance(entry, Mapping) else entry for entry in entries]
    texts = [value.strip() for value in values if isinstance(value, str)]
    if not values or len(texts) < len(values):
        raise ValueError(f"the answers are not a list of texts: {entries!r:.60}")
    if not any(texts):
        raise ValueError("the answers are empty (a test split withholds them)")
    return [text for text in texts if text]


def _task(row: Row, answers: list[str]) -> str:
    if any(row.get(name) is not None for name in _DOCUMENT):
        return "anls"
    given = isinstance(row["answers"], list | tuple) and isinstance(row["answers"][0], Mapping)
    return "vqa_soft" if given or len(answers) >= _PEOPLE else "anls"


VQA_REFERENCES = Form(
    name="vqa_references",
    written_by="VQAv2, TextVQA, OK-VQA, VizWiz",
    keys=("question", "answers"),
    read=_read_references,
)
CHARTQA = Form(
    name="chartqa",
    written_by="ChartQA",
    keys=("query", "label"),
    read=read_chart,
    fits=lambda row: isinstance(row["label"], list),
)
