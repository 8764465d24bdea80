"""VisualPRM400K: answers about images; a step's label is the share of its right continuations."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from datasets_prep.labelled_steps import assemble_steps
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The question, its images, and the steps with soft labels."""
    steps = [(step["step"], float(step["score"])) for step in row["steps_with_score"]]
    question = row["question"].replace("<image>", "").strip()
    yield assemble_steps(
        row, place, question, steps, images=row["image"], answer=row["answer"],
        used=("question", "answer", "steps_with_score", "response"),
    )  # fmt: skip


CONVERTER = Converter(
    name="visualprm",
    description="VisualPRM400K (raw): answers about images with soft labels of their steps",
    source="OpenGVLab/VisualPRM400K-v1.1-Raw on the Hugging Face Hub",
    licence="MIT",
    files=("*.jsonl",),
    convert=convert,
)
