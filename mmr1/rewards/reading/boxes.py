"""Boxes of an answer: JSON, numbers in brackets, named corners, or four numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmr1.boxes import Box
from mmr1.rewards.item import BadGoldError
from mmr1.rewards.reading.stance import Unread, conclusion, is_taken_back, may_exclude, states_none

Labelled = dict[str, list[Box]]
"""The boxes of each label."""
_FENCE = re.compile(r"(?s)```(?:json)?\s*(.*?)(?:```|$)")
_KEYS = ("bbox_2d", "bbox", "box", "box_2d")
_CORNERS = "x_?1|x_?min|left y_?1|y_?min|top x_?2|x_?max|right y_?2|y_?max|bottom"
_N = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# [a, b, c, d], perhaps with a score, or two points: (a, b), (c, d).
_IN_BRACKETS = re.compile(
    rf"[\[(]\s*({_N})\s*[,\s]\s*({_N})\s*(?:[,\s]|[)\]][^\d\[(]{{0,40}}[\[(])\s*({_N})\s*[,\s]\s*({_N})"
    r"(?:\s*,\s*(?:0?\.\d+|1(?:\.0*)?))?\s*[\])]"
)
_NAMED = [re.compile(rf"(?i)\b(?:{names})\b[\"']?\s*[:=]?\s*({_N})") for names in _CORNERS.split()]
_NUMBER = re.compile(rf"(?<![A-Za-z_\d.]){_N}")  # not the digit of a key: bbox_2d, x1
_MAX_TEXT = 1_000_000


def read_boxes(text: str) -> list[Box] | Unread:
    """Return the boxes of an answer; none only where it says that there are none.

    JSON comes first, then four numbers or two points in brackets wherever they stand, then named
    corners, then exactly four numbers. Labels, scores and list numbers beside a box do not count,
    and neither does a box that is taken back ("not at [1, 2, 3, 4]").

    >>> read_boxes('```json\\n[{"bbox_2d": [1, 2, 3.5, 4], "label": "cat 3"}]\\n```')
    [(1.0, 2.0, 3.5, 4.0)]
    >>> read_boxes("2. cat (1, 2) to (3, 4), score 0.9"), read_boxes("There is no cat.")
    ([(1.0, 2.0, 3.0, 4.0)], [])
    >>> read_boxes("1, 2, 3").reason
    'no box'
    """
    if len(text) > _MAX_TEXT:
        return Unread("a text of more than a million characters")
    body = _unfenced(text)
    try:
        return list(boxes_of(json.loads(body)))
    except (ValueError, RecursionError):
        pass
    _, body = conclusion(body, lambda part: _IN_BRACKETS.search(part) is not None)
    if found := list(_IN_BRACKETS.finditer(body)):
        excludes = may_exclude(body)
        kept = [match for match in found if not (excludes and is_taken_back(body, match))]
        return [_box(match.groups()) for match in kept] or Unread(f"only negated: {found[0][0]}")
    named = [pattern.findall(body) for pattern in _NAMED]
    if all(named) and len({len(values) for values in named}) == 1:
        return [_box(numbers) for numbers in zip(*named, strict=True)]
    numbers = list(_NUMBER.finditer(body))
    ranges = re.search(r"(?i)\b[xy]\b", body)  # x: 1-3, y: 2-4
    if len(numbers) == 4 and not ranges and not is_taken_back(body, numbers[0], numbers[-1]):
        return [_box([match[0] for match in numbers])]
    return [] if not numbers and states_none(body) else Unread("no box")


def read_labels(text: str) -> Labelled | Unread:
    """Return the boxes of each label; none where the text is ``None`` or an empty list.

    >>> read_labels('[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]')
    {'cat': [(1.0, 2.0, 3.0, 4.0)]}
    """
    try:
        return labels_of([] if text.strip() == "None" else json.loads(_unfenced(text)))
    except (ValueError, RecursionError):
        return Unread("no list of boxes with labels")


def labels_of(value: Any) -> Labelled:
    """Return the boxes of each label of a value as JSON has it: ``{"bbox_2d", "label"}`` each.

    Raises:
        ValueError: If it is no list of such objects.
    """
    found: Labelled = {}
    for entry in value if isinstance(value, list | tuple) else [None]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("label"), str):
            raise ValueError("an entry without a label")
        found.setdefault(entry["label"], []).extend(boxes_of(entry))
    return found


def gold_labels(answer: Any) -> Labelled:
    """Return the gold boxes of each label, from a list or from it as text.

    Raises:
        BadGoldError: If it is neither.
    """
    try:
        found = read_labels(answer) if isinstance(answer, str) else labels_of(answer)
    except ValueError as error:
        found = Unread(str(error))
    if isinstance(found, Unread):
        raise BadGoldError(f"the gold answer {answer!r:.60}: {found.reason}")
    return found


def _unfenced(text: str) -> str:
    fenced = _FENCE.search(text)
    return (fenced[1] if fenced else text).strip()


def boxes_of(value: Any) -> Iterator[Box]:
    """Yield the boxes of a value as JSON has it.

    A box is four numbers, two points, or an object that holds a box; a list or an object may hold
    several. An empty list holds none.

    Raises:
        ValueError: If the value holds no box and is not empty, or holds other numbers.
    """
    if isinstance(value, Mapping):
        inner = next((value[key] for key in _KEYS if key in value), None)
        parts = [v for v in value.values() if isinstance(v, Mapping | list | tuple)]
        if inner is None and not parts:
            raise ValueError("an object without a box")
        yield from boxes_of(parts if inner is None else inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        corners = _flat(value)
        if len(corners) == 4 and all(map(_is_number, corners)):
            yield _box(corners)
            return
        for element in value:
            if _is_number(element):
                raise ValueError("numbers that are not a box")
            yield from boxes_of(element)
    else:
        raise ValueError("neither a list nor an object")


def _flat(value: Sequence[Any]) -> Sequence[Any]:
    """Return two points as four numbers."""
    if len(value) == 2 and all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
        return [*value[0], *value[1]]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _box(numbers: Sequence[Any]) -> Box:
    x1, y1, x2, y2 = (_finite(n) for n in numbers)
    return x1, y1, x2, y2


def _finite(number: float | str) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
