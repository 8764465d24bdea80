"""Samples of temporal grounding: one question and one check for all of these datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets_prep.converters.base import Changed
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import MediaRef, Message, Sample
from mmr1.vision.videos import probe_video

_SUFFIXES = (".mp4", ".avi", ".mkv", ".webm")


def moment(
    row: Row,
    place: Place,
    video: str,
    sentence: str,
    span: Sequence[float],
    duration: float,
    segment: tuple[float, float] | None = None,
) -> Iterator[Sample | Changed]:
    """The sample of one described moment.

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
    yield Changed(sample, "end clipped to the video's duration") if clipped < end else sample


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


def video_file(root: Path, name: str) -> str:
    """The path, relative to the root, of the video with this name in any of the usual places.

    Raises:
        ValueError: There is none.
    """
    for folder in ("", "videos/", "Charades_v1/", "Charades_v1_480/"):
        for suffix in _SUFFIXES:
            if (root / f"{folder}{name}{suffix}").is_file():
                return f"{folder}{name}{suffix}"
    raise ValueError(f"the video '{name}' ({', '.join(_SUFFIXES)}) is not under {root}")
