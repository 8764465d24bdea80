"""GeoQA multiple-choice test questions of G-LLaVA, with their answers in a second file."""

import re
from collections.abc import Iterator
from pathlib import Path

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble_question
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers import read_rows
from mmr1.data.readers.classes import Located
from mmr1.types import Sample

_OPTION = re.compile(r"^([A-Z]):(.*)$", re.MULTILINE)


def rows(path: Path) -> Iterator[Located]:
    """The questions, each with the answer of the same id from the answer file beside it."""
    answers = path.with_name(path.name.replace("question", "answer"))
    if answers == path or not answers.is_file():
        raise ValueError(f"{path}: its answers ({answers.name}) are not beside it; put them there")
    gold = {row["question_id"]: row["text"] for _, row in read_rows(answers)}
    for where, row in read_rows(path):
        if isinstance(row, ValueError):
            yield where, row
        else:
            yield where, {**row, "answer": gold.get(row["question_id"])}


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The bare question and its options; the prompt wording of G-LLaVA is left out."""
    text = row["text"].partition("Question:")[2]
    question, _, listed = text.partition("\nChoices:\n")
    options = dict(_OPTION.findall(listed))
    if not question or not options or row["answer"] is None:
        raise ValueError("no question, no choices or no answer")
    yield assemble_question(
        row, place, question, row["answer"], images=row["image"], task="choice", options=options,
        used=("text", "answer"),
    )  # fmt: skip


CONVERTER = Converter(
    name="geoqa_choice",
    description="GeoQA test questions with four options (G-LLaVA)",
    source="G-LLaVA playground/data",
    licence="none stated in the repository",
    files=("*questions.jsonl",),
    convert=convert,
    rows=rows,
)
