"""Time-R1's training rows: one moment each, in a video or in a segment of one."""

from __future__ import annotations

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.moments import described_moment, segment_of
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A moment that ends after its video is clipped."""
    return read_clipped(row, place)[0]


def read_clipped(row: Row, place: Place) -> tuple[Sample, bool]:
    """The sample, and whether its end was clipped.

    With ``video_start`` and ``video_end``, times count from the start of that segment.
    """
    segment = segment_of(row.get("video_start"), row.get("video_end"))
    return described_moment(
        row, place, row["video"], row["sentence"], row["timestamp"], row["duration"], segment
    )


FORM = Form(
    name="time_r1",
    written_by="Time-R1",
    keys=("video", "sentence", "timestamp", "duration"),
    read=read,
    example={
        "video": "clip.mp4",
        "sentence": "A cat runs.",
        "timestamp": [0.2, 0.8],
        "duration": 1.0,
    },
)
