"""Moments in videos: one wording and one check for every temporal-grounding dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets_prep.converters.base import Changed
from mmr1.data.forms import Place, Row, assemble
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
    cut: tuple[float, float] | None = None,
) -> Iterator[Sample | Changed]:
    """The sample of one described moment.

    Args:
        row: For ``meta``.
        place: Of the row.
        video: Path of the video.
        sentence: What happens in the moment.
        span: Its start and end in seconds.
        duration: Of the video (of the cut, where there is one) in seconds.
        cut: Start and end of the part of the video that is meant, where it is not the whole.

    Raises:
        ValueError: The moment does not begin before it ends, or begins after the video.
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
    if cut is not None and not _is_cut_already(sample.media[0], duration):
        sample = _cut(sample, cut)
    yield Changed(sample, "end clipped to the video's duration") if clipped < end else sample


def _is_cut_already(video: MediaRef, duration: float) -> bool:
    header = probe_video(video)
    return abs(header.frames / header.fps - duration) < 1.0


def _cut(sample: Sample, cut: tuple[float, float]) -> Sample:
    options = {"start": cut[0], "end": cut[1]}

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
    """The path below the root of the video with this name, whatever its folder and suffix.

    Raises:
        ValueError: There is none.
    """
    for folder in ("", "videos/", "Charades_v1/", "Charades_v1_480/"):
        for suffix in _SUFFIXES:
            if (root / f"{folder}{name}{suffix}").is_file():
                return f"{folder}{name}{suffix}"
    raise ValueError(f"the video '{name}' ({', '.join(_SUFFIXES)}) is not under {root}")
