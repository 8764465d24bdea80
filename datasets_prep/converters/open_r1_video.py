"""Open-R1-Video: multiple choice about a video, ``<answer>A.</answer>``."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter, with_task
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The letter without its full stop."""
    sample = read_row(row, place, "r1_v")
    yield with_task(sample, "choice", str(sample.answer).rstrip(". "))


CONVERTER = Converter(
    name="open_r1_video",
    description="Open-R1-Video-4k: multiple choice about videos",
    source="Xiaodong/open-r1-video-4k on the Hugging Face Hub",
    licence="not stated; see the dataset card",
    files=("*.jsonl", "*.parquet"),
    convert=convert,
)
