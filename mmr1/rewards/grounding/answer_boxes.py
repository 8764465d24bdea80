"""Boxes read out of text, and their overlap."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmr1.boxes import Box, is_box

_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
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
                    raise ValueError("numbers that are no box")
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
    """Intersection over union of two boxes as continuous areas; 0 where one is no box.

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
