"""Segments of time, and whether the order of the frames was used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmr1.rewards.item import BadGoldError, no_answer
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.types import Reward

_TIME = re.compile(r"(?:(?:\d{1,4}:)?\d{1,3}:\d{1,2}(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)")
_ENDS = (("start", "end"), ("start_time", "end_time"), ("begin", "end"))
_WHOLE = ("time", "segment")
_MAX_TEXT = 10_000  # two times fit into less


def tiou(
    completion: str,
    answer: Any,
    *,
    duration: float | None = None,
    threshold: float | None = None,
    extract: Where = "auto",
) -> float | Reward:
    """IoU of the answer's segment of time and the gold segment.

    Times are seconds (``12.5``) or ``mm:ss`` or ``hh:mm:ss``; the answer must hold exactly two,
    the start before the end. Both are clamped to the video's duration, and a segment without
    length scores 0.

    Args:
        completion: The whole completion.
        answer: The gold segment: ``[start, end]`` in seconds, ``{"start", "end"}``, ``{"time"}`` or
            text.
        duration: Length of the video in seconds, where the record has it.
        threshold: The reward is 1 at or above this IoU and 0 below, instead of the IoU.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> tiou("<answer>from 0:05 to 0:15</answer>", [0, 10])
    0.3333333333333333
    """
    gold = gold_segment(answer)
    text = extract_answer(completion, extract)
    if text is None:
        return no_answer()
    predicted = read_segment(text)
    if predicted is None:
        return 0.0
    end = float("inf") if duration is None else float(duration)
    overlap = segment_iou(_clamp(predicted, end), _clamp(gold, end))
    return overlap if threshold is None else float(overlap >= threshold)


def tiou_gold(answer: Any) -> None:
    """Raises BadGoldError when the gold is not a segment."""
    gold_segment(answer)


def gold_segment(answer: Any) -> tuple[float, float]:
    """The gold segment in seconds. Raises BadGoldError when it is none."""
    text = extract_answer(answer, "whole") if isinstance(answer, str) else _as_text(answer)
    segment = read_segment(text or "")
    if segment is None:
        raise BadGoldError(
            f"the gold answer {answer!r:.60} is not a segment [start, end] in seconds"
        )
    return segment


def _as_text(answer: Any) -> str:
    if isinstance(answer, Mapping):
        for start, end in _ENDS:
            if start in answer and end in answer:
                return f"{answer[start]} {answer[end]}"
        return str(next((answer[key] for key in _WHOLE if key in answer), dict(answer)))
    if isinstance(answer, Sequence):
        return " ".join(str(time) for time in answer)
    return ""


def read_segment(text: str) -> tuple[float, float] | None:
    """Two times in seconds, the first before the second, or None.

    >>> read_segment("1:05 - 1:20.5"), read_segment("[20, 10]")
    ((65.0, 80.5), None)
    >>> read_segment('{"end": 9, "start": 2}')
    (2.0, 9.0)
    """
    if len(text) > _MAX_TEXT:
        return None
    try:
        value = json.loads(text)
        if isinstance(value, Mapping):
            text = _as_text(value)
    except (ValueError, RecursionError):
        pass
    times = [_seconds(time) for time in _TIME.findall(text)]
    return (times[0], times[1]) if len(times) == 2 and times[0] < times[1] else None


def _seconds(time: str) -> float:
    seconds = 0.0
    for field in time.split(":"):
        seconds = 60 * seconds + float(field)
    return seconds


def _clamp(segment: tuple[float, float], end: float) -> tuple[float, float]:
    return min(segment[0], end), min(segment[1], end)


def segment_iou(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Intersection over union of two segments; 0 where one has no length."""
    if not (a[0] < a[1] and b[0] < b[1]):
        return 0.0
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(0.0, overlap) / (max(a[1], b[1]) - min(a[0], b[0])) if overlap > 0 else 0.0


def temporal_contrast(
    accuracy: float,
    group_accuracy: float,
    shuffled_accuracy: float,
    *,
    bonus: float = 0.3,
    correct_above: float = 0.5,
    shuffled_factor: float = 1.0,
) -> float:
    """A bonus for right answers, if ordered frames do as well as shuffled ones (T-GRPO).

    ``bonus`` where ``p >= shuffled_factor * p_shuffled`` and this completion is right; else 0.
    ``p`` is the group's mean accuracy with its frames in order, ``p_shuffled`` that of completions
    sampled with the frames shuffled, or under another view (``rollout.views``). Feng et al. 2025,
    Video-R1, https://arxiv.org/abs/2503.21776, equation 1.

    Args:
        accuracy: This completion's accuracy, from the reward function named by ``of``.
        group_accuracy: Mean accuracy of its group.
        shuffled_accuracy: Mean accuracy of the same prompt with shuffled frames.
        bonus: The reward of such an answer.
        correct_above: A completion is right above this accuracy.
        shuffled_factor: 1 in the paper; 0.8 in Video-R1's code.

    >>> temporal_contrast(1.0, 0.5, 0.5), temporal_contrast(0.0, 0.75, 0.5)
    (0.3, 0.0)
    """
    no_worse = group_accuracy >= shuffled_factor * shuffled_accuracy
    return bonus if no_worse and accuracy > correct_above else 0.0
