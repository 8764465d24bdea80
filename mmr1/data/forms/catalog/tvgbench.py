"""TVGBench: a described moment of a video, whose start and end are ``"13.4-28.1"``."""

from __future__ import annotations

import re

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.moments import described_moment, segment_of
from mmr1.types import Sample

_SPAN = re.compile(r"\s*([\d.]+)\s*-\s*([\d.]+)\s*")


def read(row: Row, place: Place) -> Sample:
    """A moment that ends after its video is clipped."""
    return read_clipped(row, place)[0]


def read_clipped(row: Row, place: Place) -> tuple[Sample, bool]:
    """The sample, and whether its end was clipped."""
    span = _SPAN.fullmatch(str(row["answer"]))
    if span is None:
        raise ValueError(f"the answer {row['answer']!r} is no 'start-end'")
    times = float(span[1]), float(span[2])
    segment = segment_of(row.get("start"), row.get("end"))
    return described_moment(
        row, place, row["path"], row["question"], times, row["duration"], segment
    )


FORM = Form(
    name="tvgbench",
    written_by="TVGBench (Time-R1)",
    keys=("path", "question", "answer", "duration"),
    read=read,
    example={"path": "clip.mp4", "question": "a cat runs.", "answer": "0.2-0.8", "duration": 1.0},
    fits=lambda row: isinstance(row["answer"], str) and _SPAN.fullmatch(row["answer"]) is not None,
)
