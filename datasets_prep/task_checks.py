"""The needs of each task: a question, a gold of its kind, media it can be asked about."""

from __future__ import annotations

from collections.abc import Callable

from mmr1.data.forms.boxes import check_gold_boxes
from mmr1.data.media_values import check_options
from mmr1.registry import suggest
from mmr1.rewards.builtin.temporal import gold_segment
from mmr1.rewards.kind import reward_of_task, rewards_of_tasks
from mmr1.types import MediaRef, Message, Sample
from mmr1.vision.budget import VideoBudget, check_aspect_ratio
from mmr1.vision.images import image_size
from mmr1.vision.videos import probe_video, sampled_grid

LATE_S = 0.5
"""Seconds that a gold span may end after its video. Annotators round, and headers do too."""


def check_needs(sample: Sample) -> None:
    """Check the needs of the sample's task, except for decoding its media and gold.

    Raises:
        ValueError: If there is no question, the task is unknown or has no gold, a box or a span
            lies outside its medium, or the options of a medium cannot be met.
    """
    if not any(m.role == "user" and (m.text.strip() or _shows(m)) for m in sample.messages):
        raise ValueError("no question: no user message has a text or a medium")
    for ref in sample.media:
        _check_medium(ref)
    _check_task(sample)
    reward = reward_of_task(sample.task)
    if reward in _NEEDS and sample.answer is not None:
        _NEEDS[reward](sample)


def _shows(message: Message) -> bool:
    return any(isinstance(part, MediaRef) for part in message.parts)


def _check_task(sample: Sample) -> None:
    task = sample.task
    if task is None:
        return
    if reward_of_task(task) is None:
        raise ValueError(
            f"unknown task '{task}'{suggest(task, (known := rewards_of_tasks()))}; known are "
            f"{', '.join(sorted(known))}. A task of your own reward function belongs under 'meta'"
        )
    if sample.answer is None and not is_demonstration(sample):
        raise ValueError(
            f"no gold: the task '{task}' needs an 'answer'; without one the record needs a final "
            "assistant message (SFT) or 'chosen' and 'rejected' in 'meta' (DPO)"
        )


def is_demonstration(sample: Sample) -> bool:
    """True if a record has what it teaches beside an answer: a reply, a ranking, labels."""
    replies = bool(sample.messages) and sample.messages[-1].role == "assistant"
    taught = ({"ranking"}, {"chosen", "rejected"}, {"completions", "labels"})
    return replies or any(keys <= sample.meta.keys() for keys in taught)


def _check_medium(ref: MediaRef) -> None:
    try:
        check_options(ref.options)
        if ref.kind == "video":
            sampled_grid(ref, VideoBudget())  # as training asks for it
        elif timed := sorted({"fps", "nframes", "start", "end"} & ref.options.keys()):
            raise ValueError(f"the media option '{timed[0]}' is one of videos")
        else:
            check_aspect_ratio(*(ref.size or image_size(ref)))
        least, most = ref.options.get("min_pixels"), ref.options.get("max_pixels")
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_pixels={least} is above max_pixels={most}")
    except ValueError as error:
        raise ValueError(named(ref, str(error))) from error


def named(ref: MediaRef, reason: str) -> str:
    """The reason with the medium, unless it names it already."""
    return reason if str(ref) in reason else f"{ref}: {reason}"


def _check_span(sample: Sample) -> None:
    """Check that a gold span ends before its video, or the shown part of it, does."""
    video = next((ref for ref in sample.media if ref.kind == "video"), None)
    if video is None:
        raise ValueError(f"the task '{sample.task}' is about a video, and the record has none")
    start, end = gold_segment(sample.answer)
    shown = _seconds_shown(video)
    if end > shown + LATE_S:
        raise ValueError(
            f"the span {start:g} to {end:g} s ends after the video, which shows {shown:.2f} s; "
            "spans count from the start of what is shown"
        )


def _seconds_shown(video: MediaRef) -> float:
    header = probe_video(video)
    seconds = header.frames / header.fps
    start, end = video.options.get("start", 0.0), video.options.get("end", seconds)
    return min(end, seconds) - start


_NEEDS: dict[str, Callable[[Sample], object]] = {"iou": check_gold_boxes, "tiou": _check_span}
