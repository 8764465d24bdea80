"""Boxes of an answer against the gold boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from mmr1.boxes import Box, Size, SpaceName, is_box, to_original
from mmr1.extras import needs_extra
from mmr1.rewards.item import BadGoldError, Job, unread
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.boxes import boxes_of, read_boxes
from mmr1.rewards.reading.extract import Where
from mmr1.rewards.reading.read import read_gold, score_answer
from mmr1.types import Reward

Sizes = Sequence[Size | None]
CHEAP_PAIRS = 10_000  # more pairs of boxes than these are matched in the sandbox


def gold_boxes(answer: Any) -> list[Box]:
    """The gold boxes. Raises BadGoldError when one is not a box."""
    what = "a list of boxes [x1, y1, x2, y2] with x1<x2, y1<y2"
    boxes = read_gold(answer, what, read_boxes, lambda value: list(boxes_of(value)))
    for box in boxes:
        if not is_box(box):
            raise BadGoldError(f"the gold answer {answer!r:.60} is not {what}: {list(box)}")
    return boxes


@reward(
    "iou",
    gold=gold_boxes,
    tasks=("iou", "rec", "grounding", "detection"),
    example={
        "completion": "<answer>[0, 0, 10, 5]</answer>",
        "answer": [0, 0, 10, 10],
        "reward": 0.5,
    },
)
def iou(
    completion: str,
    answer: Any,
    model_space: SpaceName | None = None,
    original_sizes: Sizes = (),
    media_sizes: Sizes = (),
    image_size: Size | None = None,
    resized_size: Size | None = None,
    *,
    space: SpaceName | Literal["model"] = "model",
    threshold: float | None = None,
    image: int = 0,
    extract: Where = "auto",
) -> float | Reward | Job:
    """Mean IoU of the best one-to-one matching of boxes, over the larger number of boxes.

    One box against one is plain IoU. The gold is in original pixels; the answer is read by
    ``mmr1.rewards.reading.boxes`` and scaled from its space once. A box that is not finite or has
    no area scores 0 and counts as one. An answer without a box is unread, unless it says that there
    is none; so is one whose numbers are at most 1 where the space is not ``0-1``.

    Args:
        completion: The whole completion.
        answer: One gold box or a list of them, ``(x1, y1, x2, y2)`` in original pixels.
        space: The answer's space: ``original``, ``resized`` (pixels that the model saw),
            ``0-1000``, ``0-1``, or ``model``: the model's, and ``original`` where a completion is
            scored without a model.
        threshold: The reward is 1 at or above this mean IoU and 0 below, instead of the IoU.
        model_space: Space in which the family of the model writes boxes.
        original_sizes: ``(width, height)`` of each file's image.
        media_sizes: ``(width, height)`` that the model saw of each.
        image_size: The original size, where the record has it by this name.
        resized_size: The size that the model saw, where the record has it by this name.
        image: Number of the sample's image.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> iou("<answer>[0, 0, 10, 5]</answer>", [0, 0, 10, 10])
    0.5
    """
    if space == "model":
        space = model_space or "original"
    gold = gold_boxes(answer)
    original_size = image_size or size_at(original_sizes, image)
    seen_size = resized_size or size_at(media_sizes, image)

    def score(boxes: list[Box]) -> float | Reward | Job:
        if space != "0-1" and boxes and max(max(map(abs, box)) for box in boxes) <= 1:
            return unread(f"the box {list(boxes[0])} looks like 0-1, and the space is {space}")
        predicted = [to_original(box, space, original_size, seen_size) for box in boxes]
        if len(predicted) * len(gold) > CHEAP_PAIRS:
            arguments = (tuple(predicted), tuple(gold), threshold)
            return Job("mmr1.rewards.builtin.iou:iou_reward", arguments)
        return iou_reward(predicted, gold, threshold)

    return score_answer(completion, extract, read_boxes, score)


def iou_reward(predicted: Sequence[Box], gold: Sequence[Box], threshold: float | None) -> float:
    """The mean matched IoU; with a threshold 1 where it reaches it and 0 below."""
    mean = matched_iou(predicted, gold)
    return mean if threshold is None else float(mean >= threshold)


def matched_iou(predicted: Sequence[Box], gold: Sequence[Box]) -> float:
    """Sum of IoU over the best matching, over the larger number of boxes; 1 for none and none.

    The assignment is the Hungarian one (Kuhn 1955) of scipy.
    """
    larger = max(len(predicted), len(gold))
    if larger == 0:
        return 1.0
    if min(len(predicted), len(gold)) == 0:
        return 0.0
    if min(len(predicted), len(gold)) == 1:
        return max(iou_of(a, b) for a in predicted for b in gold) / larger
    import numpy as np

    with needs_extra("report", "iou with several boxes"):
        from scipy.optimize import linear_sum_assignment

    overlaps = np.array([[iou_of(a, b) for b in gold] for a in predicted])
    rows, columns = linear_sum_assignment(overlaps, maximize=True)
    return float(overlaps[rows, columns].sum()) / larger


def size_at(sizes: Sequence[Any], index: int) -> Size | None:
    return sizes[index] if index < len(sizes) else None


def iou_of(a: Box, b: Box) -> float:
    """Intersection over union of two boxes as continuous areas; 0 where one is not a box.

    >>> iou_of((0, 0, 2, 2), (1, 1, 3, 3))
    0.14285714285714285
    """
    if not (is_box(a) and is_box(b)):
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    area_a, area_b = ((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    overlap = width * height
    union = area_a + area_b - overlap
    return overlap / union if math.isfinite(union) else 0.0
