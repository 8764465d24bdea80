"""Moments of videos that a text describes: TVGBench, Time-R1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import CHANGED, Form, Place, Row
from mmr1.data.forms.media_kinds import media_in
from mmr1.types import MediaRef, Sample
from mmr1.vision.videos import probe_video

_SPAN = re.compile(r"\s*([\d.]+)\s*-\s*([\d.]+)\s*")


# TVGBench: a described moment of a video, whose start and end are ``"13.4-28.1"``.
def _read_tvgbench(row: Row, place: Place) -> Sample:
    """Moments that end after their video are clipped."""
    span = _SPAN.fullmatch(str(row["answer"]))
    if span is None:
        raise ValueError(f"the answer {row['answer']!r} is not of the form 'start-end'")
    times = float(span[1]), float(span[2])
    segment = segment_of(row.get("start"), row.get("end"))
    return described_moment(
        row, place, row["path"], row["question"], times, row["duration"], segment
    )


TVGBENCH = Form(
    name="tvgbench",
    written_by="TVGBench (Time-R1)",
    keys=("path", "question", "answer", "duration"),
    read=_read_tvgbench,
    fits=lambda row: isinstance(row["answer"], str) and _SPAN.fullmatch(row["answer"]) is not None,
)


# Time-R1's training rows: one moment each, in a video or in a segment of one.
def _read_time_r1(row: Row, place: Place) -> Sample:
    """Moments that end after their video are clipped.

    With ``video_start`` and ``video_end``, times count from the start of that segment.
    """
    segment = segment_of(row.get("video_start"), row.get("video_end"))
    return described_moment(
        row, place, row["video"], row["sentence"], row["timestamp"], row["duration"], segment
    )


TIME_R1 = Form(
    name="time_r1",
    written_by="Time-R1",
    keys=("video", "sentence", "timestamp", "duration"),
    read=_read_time_r1,
)


def described_moment(
    row: Row,
    place: Place,
    video: str,
    sentence: str,
    span: Sequence[float],
    duration: float,
    segment: tuple[float, float] | None = None,
) -> Sample:
    """The sample of one described moment; an end after that of the video is clipped to it.

    Args:
        row: Row, for ``meta``.
        place: The row's place.
        video: Path of the video.
        sentence: Sentence that says what happens in the moment.
        span: Its start and end in seconds.
        duration: Seconds of the video, or of the segment.
        segment: Start and end in seconds of the segment that the row is about; None for all.

    Raises:
        ValueError: The moment ends before it begins, or begins after the end of the video.
    """
    start, end = (float(t) for t in span)
    if start >= end:
        raise ValueError(f"the moment ends ({end:g} s) before it begins ({start:g} s)")
    if start >= duration:
        raise ValueError(f"the moment begins at {start:g} s of a {duration:g} s video")
    clipped = min(end, duration)
    question = f'When does this happen: "{sentence.strip().rstrip(".")}"? Give start and end.'
    kept = ("id", "qid", "difficulty")
    sample = assemble(
        row,
        place,
        [("user", question)],
        videos=video,
        answer=[start, clipped],
        task="tiou",
        used=[n for n, v in row.items() if n not in kept and (v is video or not any(media_in(v)))],
        untagged=True,
        meta={
            "duration": duration,
            "sentence": sentence,
            **({CHANGED: "end clipped to the video's duration"} if clipped < end else {}),
        },
    )
    if segment is not None and not _file_is_segment(sample.media[0], duration):
        return _select_segment(sample, segment)
    return sample


def segment_of(start: float | None, end: float | None) -> tuple[float, float] | None:
    """The segment that two columns of a row name; None if one of them is empty."""
    return None if start is None or end is None else (float(start), float(end))


def _file_is_segment(video: MediaRef, duration: float) -> bool:
    header = probe_video(video)
    return abs(header.frames / header.fps - duration) < 1.0


def _select_segment(sample: Sample, segment: tuple[float, float]) -> Sample:
    options = {"start": segment[0], "end": segment[1]}

    messages = tuple(
        replace(
            message,
            parts=tuple(
                replace(part, options=options) if isinstance(part, MediaRef) else part
                for part in message.parts
            ),
        )
        for message in sample.messages
    )
    return replace(sample, messages=messages)
