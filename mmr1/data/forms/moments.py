"""Samples of temporal grounding: one question and one check for all rows of described moments."""

from __future__ import annotations

from collections.abc import Sequence

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import MediaRef, Message, Sample
from mmr1.vision.videos import probe_video


def described_moment(
    row: Row,
    place: Place,
    video: str,
    sentence: str,
    span: Sequence[float],
    duration: float,
    segment: tuple[float, float] | None = None,
) -> tuple[Sample, bool]:
    """The sample of one described moment, and whether its end was clipped to the video's.

    Args:
        row: For ``meta``.
        place: The row's place.
        video: Path of the video.
        sentence: What happens in the moment.
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
    sample = assemble(
        {k: v for k, v in row.items() if k in ("id", "qid", "difficulty")},
        place,
        [("user", question)],
        videos=video,
        answer=[start, clipped],
        task="tiou",
        untagged=True,
        meta={"duration": duration, "sentence": sentence},
    )
    if segment is not None and not _file_is_segment(sample.media[0], duration):
        sample = _select_segment(sample, segment)
    return sample, clipped < end


def segment_of(start: float | None, end: float | None) -> tuple[float, float] | None:
    """The segment that two columns of a row name; None if one of them is empty."""
    return None if start is None or end is None else (float(start), float(end))


def _file_is_segment(video: MediaRef, duration: float) -> bool:
    header = probe_video(video)
    return abs(header.frames / header.fps - duration) < 1.0


def _select_segment(sample: Sample, segment: tuple[float, float]) -> Sample:
    options = {"start": segment[0], "end": segment[1]}

    def marked(message: Message) -> Message:
        return Message(
            message.role,
            tuple(
                MediaRef(p.kind, p.path, p.data, p.size, options) if isinstance(p, MediaRef) else p
                for p in message.parts
            ),
        )

    messages = tuple(marked(m) for m in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
