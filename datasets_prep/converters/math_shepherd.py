"""Math-Shepherd: steps labelled by where their continuations lead."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from datasets_prep.labelled_steps import assemble_steps
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

MARK = "\N{CYRILLIC SMALL LETTER KA}\N{CYRILLIC SMALL LETTER I}"
"""Stands at the end of each step of ``input``; ``label`` is the same text with + or - there."""


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The question, and the steps from ``Step 1:`` on."""
    question, first, _ = row["input"].partition("Step 1:")
    if not first:
        raise ValueError("there is no 'Step 1:' in input")
    steps, position = [], 0
    for text in row["input"].split(MARK)[:-1]:
        end = position + len(text)
        if not row["label"].startswith(text, position) or row["label"][end : end + 1] not in "+-":
            raise ValueError("input and label are not the same text, so the labels have no steps")
        steps.append((text, float(row["label"][end] == "+")))
        position = end + 1
    steps[:1] = [(text.removeprefix(question), label) for text, label in steps[:1]]
    yield assemble_steps(row, place, question.strip(), steps, used=("input", "label", "task"))


CONVERTER = Converter(
    name="math_shepherd",
    description="Math-Shepherd: answers whose steps are labelled by their continuations",
    source="peiyi9979/Math-Shepherd on the Hugging Face Hub",
    licence="none stated",
    files=("*.jsonl", "*.parquet"),
    convert=convert,
)
