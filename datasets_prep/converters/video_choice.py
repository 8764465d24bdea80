"""Multiple choice about videos: NExT-GQA, Open-R1-Video."""

from __future__ import annotations

from collections.abc import Iterator

from datasets_prep.converters.base import Converter, with_task
from mmr1.data.forms import read_row
from mmr1.data.forms.assemble import assemble_question
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


# NExT-GQA: a choice about a video, with the spans that show the answer.
def _convert_nextgqa(row: Row, place: Place) -> Iterator[Sample]:
    """The letter is the answer; the spans (``glue``, seconds) stay in ``meta``."""
    yield assemble_question(
        row, place, row["question"], row["answer"], videos=row["video"], task="choice",
        used=("question", "answer"),
    )  # fmt: skip


NEXTGQA = Converter(
    name="nextgqa",
    description="NExT-GQA: video questions with five options and grounding spans",
    source="VideoChat-R1 Annotations/NextGQA",
    licence="none stated in the repository; NExT-GQA is for research",
    files=("nextgqa*.json",),
    convert=_convert_nextgqa,
)


# Open-R1-Video: multiple choice about a video, ``<answer>A.</answer>``.
def _convert_open_r1_video(row: Row, place: Place) -> Iterator[Sample]:
    """The letter without its full stop."""
    sample = read_row(row, place, "r1_v")
    yield with_task(sample, "choice", str(sample.answer).rstrip(". "))


OPEN_R1_VIDEO = Converter(
    name="open_r1_video",
    description="Open-R1-Video-4k: multiple choice about videos",
    source="Xiaodong/open-r1-video-4k on the Hugging Face Hub",
    licence="not stated; see the dataset card",
    files=("*.jsonl", "*.parquet"),
    convert=_convert_open_r1_video,
)
