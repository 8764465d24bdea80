"""MathVista: multiple choice answered by the option's text, and numbers with a precision."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import LETTERS, with_options
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The letter of an option, or a number whose unit and precision go into the question."""
    if row.get("answer") in (None, ""):
        raise ValueError("the answer is withheld (test split)")
    choices, answer = row.get("choices") or [], str(row["answer"])
    question = row["question"]
    if choices:
        if answer not in choices:
            raise ValueError(f"the answer '{answer}' is none of the choices")
        task, answer = "choice", LETTERS[choices.index(answer)]
    else:
        task = "numeric" if row.get("answer_type") in ("integer", "float") else "math"
        question += f" (in {row['unit']})" if row.get("unit") else ""
        if row.get("precision") and row.get("answer_type") == "float":
            question += f" Round to {int(row['precision'])} decimal place(s)."
    yield assemble(
        row, place, [("user", with_options(question, choices))], images=row["image"],
        answer=answer, task=task, untagged=True, meta={"options": choices} if choices else {},
        used=("question", "choices", "answer", "query", "decoded_image"),
    )  # fmt: skip


CONVERTER = Converter(
    name="mathvista",
    description="MathVista testmini: mathematics in pictures of many kinds",
    source="AI4Math/MathVista on the Hugging Face Hub",
    licence="CC BY-SA 4.0; may not be used as training data",
    files=("testmini*.json", "*.json", "*.parquet"),
    convert=convert,
)
