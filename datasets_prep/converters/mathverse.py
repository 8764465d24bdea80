"""MathVerse: one problem in six versions, from text only to picture only."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import LETTERS, with_options
from mmr1.types import Sample

_CHOICES = re.compile(r"\n(?:Choices?|Options?):\n")
_OPTION = re.compile(r"^([A-Z])[:.](.*)$", re.MULTILINE)


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The question with each option on a line of its own; text-only rows have no image."""
    question, *listed = _CHOICES.split(row["question"], maxsplit=1)
    options = [text.strip() for _, text in _OPTION.findall("".join(listed))]
    choice = row["question_type"] == "multi-choice"
    if choice and not options:
        raise ValueError("a multiple-choice question without choices")
    if not str(question).strip() and not row["image"]:
        raise ValueError("neither a question nor a picture")
    answer = str(row["answer"]).strip()
    if choice and answer in options:  # some rows give the text of the option
        answer = LETTERS[options.index(answer)]
    yield assemble(
        row, place, [("user", with_options(question, options))], images=row["image"],
        answer=answer, task="choice" if choice else "math", untagged=True,
        used=("question", "answer", "query_wo", "query_cot", "model_answer", "question_type"),
        meta={"options": options} if options else {},
    )  # fmt: skip


CONVERTER = Converter(
    name="mathverse",
    description="MathVerse testmini: visual mathematics in six versions",
    source="ZrrSkywalker/MathVerse",
    licence="MIT; a test set",
    files=("*testmini*.json", "*.parquet"),
    convert=convert,
)
