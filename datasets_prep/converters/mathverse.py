"""MathVerse: one problem in six versions, from text only to picture only."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble_question
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

_CHOICES = re.compile(r"\n(?:Choices?|Options?):\n")
_OPTION = re.compile(r"^([A-Z])[:.](.*)$", re.MULTILINE)


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The question with each option on a line of its own; text-only rows have no image."""
    question, *listed = _CHOICES.split(row["question"], maxsplit=1)
    options = {letter: text.strip() for letter, text in _OPTION.findall("".join(listed))}
    choice = row["question_type"] == "multi-choice"
    if choice and not options:
        raise ValueError("a multiple-choice question without choices")
    if not str(question).strip() and not row["image"]:
        raise ValueError("neither a question nor a picture")
    yield assemble_question(
        row, place, question if choice else row["question"], str(row["answer"]).strip(),
        images=row["image"], options=options if choice else None,
        task="choice" if choice else "math",
        used=("question", "answer", "query_wo", "query_cot", "model_answer", "question_type"),
    )  # fmt: skip


CONVERTER = Converter(
    name="mathverse",
    description="MathVerse testmini: visual mathematics in six versions",
    source="ZrrSkywalker/MathVerse",
    licence="MIT; a test set",
    files=("*testmini*.json", "*.parquet"),
    convert=convert,
)
