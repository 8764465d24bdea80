"""Time-R1's training rows: one moment each, in a video or in a segment of one."""

from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from datasets_prep.moments import moment
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """With ``video_start`` and ``video_end``, times count from the start of that segment."""
    bounds = row.get("video_start"), row.get("video_end")
    cut = None if bounds[0] is None or bounds[1] is None else (float(bounds[0]), float(bounds[1]))
    yield from moment(
        row, place, row["video"], row["sentence"], row["timestamp"], row["duration"], cut
    )


CONVERTER = Converter(
    name="time_r1",
    description="Time-R1 temporal grounding (2.5k training moments)",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms",
    files=("*train_2k5*.json",),
    convert=convert,
)
