"""MMK12: school questions; values, letters, and answers in prose that no rule can check."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

MAX_ANSWER = 60
"""Characters; longer answers are sentences."""
_PART = re.compile(r"\(\d\)")
_DEGREES = re.compile(r"\$\{\}\^\{?\\circ\}?\s*\$")
_NUMBER = re.compile(r"\\number\{([^{}]*)\}")


def clean(answer: str) -> str:
    """One value: without the full stop, ``\\number{}`` and doubled dollars of the source.

    Raises:
        ValueError: It is prose, or several answers.
    """
    text = answer.strip()
    if "\n" in text or len(_PART.findall(text)) > 1:
        raise ValueError("several answers in one row")
    if len(text) > MAX_ANSWER:
        raise ValueError("the answer is prose, which no rule can check")
    text = _DEGREES.sub("°", _NUMBER.sub(r"\1", text))
    if text.startswith("$$") and text.endswith("$$") and len(text) > 4:
        text = f"${text[2:-2].strip()}$"
    return text.removesuffix(".").strip()


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The question and one value or letter."""
    answer = clean(str(row["answer"]))
    sample = assemble(
        row, place, [("user", row["question"])], images=row.get("image_path") or row.get("image"),
        answer=answer, task="choice" if answer in ("A", "B", "C", "D") else "math",
        used=("question", "answer"), untagged=True,
    )  # fmt: skip
    yield sample if answer == row["answer"] else Changed(sample, "answer cleaned of its markup")


CONVERTER = Converter(
    name="mmk12",
    description="MMK12: school mathematics and sciences with pictures",
    source="FanqingM/MMK12 on the Hugging Face Hub",
    licence="Apache-2.0 (MM-Eureka)",
    files=("*k12*.json", "*.jsonl", "*.parquet"),
    convert=convert,
)
