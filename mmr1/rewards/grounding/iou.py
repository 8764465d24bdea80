"""Boxes of an answer, read out of its text, against the gold boxes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmr1.boxes import Box, Size, SpaceName, is_box, to_original
from mmr1.rewards.item import BadGoldError, Job, no_answer, unread
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.types import Reward

CHEAP_PAIRS = 10_000  # more pairs of boxes than these are matched in the sandbox


def iou(
    completion: str,
    answer: Any,
    *,
    space: SpaceName = "original",
    threshold: float | None = None,
    original_sizes: Sequence[Size | None] = (),
    media_sizes: Sequence[Size] = (),
    image_size: Size | None = None,
    resized_size: Size | None = None,
    image: int = 0,
    extract: Where = "auto",
) -> float | Reward | Job:
    """Mean IoU of the best one-to-one matching of boxes, over the larger number of boxes.

    One box against one is plain IoU. The gold is in original pixels; the answer is read as JSON
    (``[x1, y1, x2, y2]``, lists of these, ``bbox_2d`` objects, in a code fence or not) or else as
    numbers in fours, and scaled from its space once. A box that is not finite or has no area
    scores 0 and counts as one.

    Args:
        completion: The whole completion.
        answer: One gold box or a list of them, ``(x1, y1, x2, y2)`` in original pixels.
        space: The answer's space: ``original``, ``resized`` (pixels that the model saw),
            ``0-1000`` or ``0-1``.
        threshold: The reward is 1 at or above this mean IoU and 0 below, instead of the IoU.
        original_sizes: ``(width, height)`` of each file's image.
        media_sizes: ``(width, height)`` that the model saw of each.
        image_size: The original size, where the record has it by this name.
        resized_size: The size that the model saw, where the record has it by this name.
        image: Which of the sample's images.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> iou("<answer>[0, 0, 10, 5]</answer>", [0, 0, 10, 10])
    0.5
    """
    gold = gold_boxes(answer)
    text = extract_answer(completion, extract)
    if text is None:
        return no_answer()
    original_size = image_size or _at(original_sizes, image)
    seen_size = resized_size or _at(media_sizes, image)
    boxes = read_boxes(text)
    if boxes is None:
        return unread("no box")
    predicted = [to_original(box, space, original_size, seen_size) for box in boxes]
    if len(predicted) * len(gold) > CHEAP_PAIRS:
        arguments = (tuple(predicted), tuple(gold), threshold)
        return Job("mmr1.rewards.grounding.iou:iou_reward", arguments)
    return iou_reward(predicted, gold, threshold)


def iou_gold(answer: Any) -> None:
    """Raises BadGoldError when the gold is not a box or a list of boxes."""
    gold_boxes(answer)


def gold_boxes(answer: Any) -> list[Box]:
    """The gold boxes. Raises BadGoldError when one is not a box."""
    try:
        text = extract_answer(answer, "whole") if isinstance(answer, str) else None
        boxes = read_boxes(text or "") if isinstance(answer, str) else list(boxes_of(answer))
    except ValueError:
        boxes = None
    if boxes is None or not all(map(is_box, boxes)):
        raise BadGoldError(
            f"the gold answer {answer!r:.60} is not a list of boxes [x1, y1, x2, y2] with "
            "x1<x2, y1<y2"
        )
    return boxes


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
    from scipy.optimize import linear_sum_assignment

    overlaps = np.array([[iou_of(a, b) for b in gold] for a in predicted])
    rows, columns = linear_sum_assignment(overlaps, maximize=True)
    return float(overlaps[rows, columns].sum()) / larger


def _at(sizes: Sequence[Any], index: int) -> Size | None:
    return sizes[index] if index < len(sizes) else None


_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
# Not the digit of a key: bbox_2d, x1.
_FLOAT = re.compile(r"(?<![A-Za-z_\d.])[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_KEYS = ("bbox_2d", "bbox", "box", "box_2d")


def read_boxes(text: str) -> list[Box] | None:
    """The boxes of an answer: JSON first, then floats in fours. None where there are none.

    >>> read_boxes('```json\\n[{"bbox_2d": [1, 2, 3.5, 4], "label": "cat"}]\\n```')
    [(1.0, 2.0, 3.5, 4.0)]
    >>> read_boxes("(1, 2) to (3, 4)"), read_boxes("[]"), read_boxes("1, 2, 3")
    ([(1.0, 2.0, 3.0, 4.0)], [], None)
    """
    fenced = _FENCE.search(text)
    body = (fenced[1] if fenced else text).strip()
    try:
        boxes = list(boxes_of(json.loads(body)))
    except (ValueError, RecursionError):
        numbers = [float(n) for n in _FLOAT.findall(body)]
        if not numbers or len(numbers) % 4:
            return None
        return [_box(numbers[i : i + 4]) for i in range(0, len(numbers), 4)]
    return boxes


def boxes_of(value: Any) -> Iterator[Box]:
    """Boxes of a value as JSON has it: four numbers, an object that holds them, or a list of such.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, Mapping):
        inner = next((value[key] for key in _KEYS if key in value), None)
        if inner is None:
            raise ValueError("an object without a box")
        yield from boxes_of(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == 4 and all(_is_number(v) for v in value):
            yield _box(value)
        else:
            for element in value:
                if _is_number(element):
                    raise ValueError("numbers that are not a box")
                yield from boxes_of(element)
    else:
        raise ValueError("neither a list nor an object")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _box(numbers: Sequence[Any]) -> Box:
    x1, y1, x2, y2 = (_finite(n) for n in numbers)
    return x1, y1, x2, y2


def _finite(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


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
