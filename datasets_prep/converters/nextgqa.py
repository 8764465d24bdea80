"""NExT-GQA: a choice about a video, with the spans that show the answer."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble_question
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The letter is the answer; the spans (``glue``, seconds) stay in ``meta``."""
    yield assemble_question(
        row, place, row["question"], row["answer"], videos=row["video"], task="choice",
        used=("question", "answer"),
    )  # fmt: skip


CONVERTER = Converter(
    name="nextgqa",
    description="NExT-GQA: video questions with five options and grounding spans",
    source="VideoChat-R1 Annotations/NextGQA",
    licence="none stated in the repository; NExT-GQA is for research",
    files=("nextgqa*.json",),
    convert=convert,
)
