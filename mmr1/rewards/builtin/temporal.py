"""Segments of time, and whether the order of the frames was used."""

from __future__ import annotations

from typing import Any

from mmr1.rewards.kind import OfAccuracy, reward
from mmr1.rewards.reading.extract import Where
from mmr1.rewards.reading.read import read_gold, score_answer
from mmr1.rewards.reading.spans import Span, read_span, span_of
from mmr1.section import Need
from mmr1.types import Reward


def gold_segment(answer: Any) -> Span:
    """The gold segment in seconds. Raises BadGoldError when it is none."""
    return read_gold(answer, "a segment [start, end] in seconds", read_span, span_of)


@reward(
    "tiou",
    gold=gold_segment,
    tasks=("tiou", "temporal grounding"),
    example={"completion": "<answer>0:05 to 0:15</answer>", "answer": [0, 10], "reward": 1 / 3},
)
def tiou(
    completion: str,
    answer: Any,
    duration: float | None = None,
    *,
    threshold: float | None = None,
    extract: Where = "auto",
) -> float | Reward:
    """IoU of the answer's segment of time and the gold segment.

    Times are seconds, other units, ``mm:ss`` or ``hh:mm:ss``, read by
    ``mmr1.rewards.reading.spans``; the start stands before the end. Both are clamped to the video's
    duration, and a segment without length scores 0. Frames are unread.

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
    end = float("inf") if duration is None else float(duration)

    def score(predicted: Span) -> float:
        overlap = segment_iou(_clamp(predicted, end), _clamp(gold, end))
        return overlap if threshold is None else float(overlap >= threshold)

    return score_answer(completion, extract, read_span, score)


def _clamp(segment: Span, end: float) -> Span:
    return min(segment[0], end), min(segment[1], end)


def segment_iou(a: Span, b: Span) -> float:
    """Intersection over union of two segments; 0 where one has no length."""
    if not (a[0] < a[1] and b[0] < b[1]):
        return 0.0
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(0.0, overlap) / (max(a[1], b[1]) - min(a[0], b[0])) if overlap > 0 else 0.0


@reward(
    "temporal_contrast",
    paper="2503.21776",
    base=OfAccuracy,
    needs=(
        Need(
            ("rollout.views.loss",),
            lambda c: c.rollout.views is None or c.rollout.views.loss != "none",
            "temporal_contrast compares with completions beside each group; T-GRPO is both: "
            "rollout.views={view: shuffle, loss: none} and the reward",
            ("rewards={math: 1, temporal_contrast: {of: math}}",),
        ),
    ),
    example={"accuracy": 1.0, "group_accuracy": 0.5, "shuffled_accuracy": 0.5, "reward": 0.3},
)
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
