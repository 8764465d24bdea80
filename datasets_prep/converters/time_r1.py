"""Time-R1's training rows: one moment each, in a video or in a segment of one."""

from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from datasets_prep.moments import counted
from mmr1.data.forms.catalog.moments import read_time_r1_clipped
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """With ``video_start`` and ``video_end``, times count from the start of that segment."""
    yield counted(*read_time_r1_clipped(row, place))


CONVERTER = Converter(
    name="time_r1",
    description="Time-R1 temporal grounding (2.5k training moments)",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms",
    files=("*train_2k5*.json",),
    convert=convert,
)
