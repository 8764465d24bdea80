"""Boxes and the spaces their numbers live in.

Gold boxes are kept as ``xyxy`` in original pixels. Qwen2.5-VL answers in pixels of the image as it
saw it (after resizing), Qwen2-VL on a 0–1000 scale, other data on 0–1. A conversion is written as
``convert(box, source, target)`` with both spaces spelled out, so that it cannot happen twice
unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Box = tuple[float, float, float, float]
Layout = Literal["xyxy", "xywh"]


@dataclass(frozen=True, slots=True)
class Space:
    """What the four numbers of a box mean.

    Attributes:
        width: Extent of the coordinates from the left to the right edge of the image: its pixels,
            or 1000, or 1.
        height: The same from top to bottom.
        layout: ``xyxy`` (two corners) or ``xywh`` (a corner and the extent).
        inclusive: The second corner is the last pixel inside rather than the first one outside,
            so that a box of one pixel has ``x2 == x1``. Only for pixels.
    """

    width: float
    height: float
    layout: Layout = "xyxy"
    inclusive: bool = False

    def __post_init__(self) -> None:
        if not (self.width > 0 and self.height > 0):
            raise ValueError(f"a space of {self.width} x {self.height} holds no boxes")


def pixels(width: int, height: int, layout: Layout = "xyxy", inclusive: bool = False) -> Space:
    """Pixels of an image of this size, original or resized."""
    return Space(width, height, layout, inclusive)


def thousandths(layout: Layout = "xyxy") -> Space:
    """0–1000 across the image whatever its size."""
    return Space(1000, 1000, layout)


def unit(layout: Layout = "xyxy") -> Space:
    """0–1 across the image whatever its size."""
    return Space(1, 1, layout)


def convert(box: Sequence[float], source: Space, target: Space) -> Box:
    """The same box in another space, without rounding.

    Raises:
        ValueError: Not four finite numbers, or the second corner lies before the first.
    """
    x1, y1, x2, y2 = _corners(box, source)
    across, down = target.width / source.width, target.height / source.height
    x1, x2, y1, y2 = x1 * across, x2 * across, y1 * down, y2 * down
    if target.layout == "xywh":
        return x1, y1, x2 - x1, y2 - y1
    if target.inclusive:
        return x1, y1, x2 - 1, y2 - 1
    return x1, y1, x2, y2


def _corners(box: Sequence[float], space: Space) -> Box:
    if len(box) != 4 or not all(isinstance(v, int | float) and math.isfinite(v) for v in box):
        raise ValueError(f"{list(box)} is not a box of four finite numbers")
    x1, y1, x2, y2 = map(float, box)
    if space.layout == "xywh":
        x2, y2 = x1 + x2, y1 + y2
    elif space.inclusive:
        x2, y2 = x2 + 1, y2 + 1
    if x2 < x1 or y2 < y1:
        raise ValueError(f"{list(box)}: the second corner lies before the first")
    return x1, y1, x2, y2


def rounded(box: Sequence[float], space: Space) -> tuple[int, int, int, int]:
    """The box to whole numbers, clipped to the image; xyxy spaces only."""
    assert space.layout == "xyxy"
    x1, y1, x2, y2 = (round(v) for v in box)
    last = 1 if space.inclusive else 0
    right, bottom = math.floor(space.width) - last, math.floor(space.height) - last
    return (
        min(max(x1, 0), right),
        min(max(y1, 0), bottom),
        min(max(x2, 0), right),
        min(max(y2, 0), bottom),
    )


def check_inside(box: Sequence[float], space: Space, tolerance: float = 1.0) -> Box:
    """The box as ``xyxy``, clipped to the image.

    Raises:
        ValueError: It is empty, or leaves the image by more than ``tolerance`` of its units: its
            numbers are then most likely of another space or of another image.
    """
    x1, y1, x2, y2 = _corners(box, space)
    if x1 < -tolerance or y1 < -tolerance:
        raise ValueError(f"{list(box)} begins outside the image")
    if x2 > space.width + tolerance or y2 > space.height + tolerance:
        raise ValueError(
            f"{list(box)} leaves the image of {space.width:g} x {space.height:g}; its numbers may "
            "be of another space (0-1000, resized pixels) or of another image"
        )
    clipped = (max(x1, 0.0), max(y1, 0.0), min(x2, space.width), min(y2, space.height))
    if clipped[2] <= clipped[0] or clipped[3] <= clipped[1]:
        raise ValueError(f"{list(box)} is empty")
    return clipped
