"""Boxes and the spaces their numbers live in: every conversion between spaces is here.

Gold boxes are ``xyxy`` in pixels of the original image. Qwen2.5-VL answers in pixels of the image
as it saw it (after resizing), Qwen2-VL on a 0-1000 scale, other data on 0-1. A conversion is
written as ``convert(box, source, target)`` with both spaces spelled out, so that it cannot happen
twice unnoticed.

Imports nothing but the standard library: reward workers use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Box = tuple[float, float, float, float]
Size = tuple[float, float]
Layout = Literal["xyxy", "xywh"]
SpaceName = Literal["original", "resized", "0-1000", "0-1"]


@dataclass(frozen=True, slots=True)
class Space:
    """The meaning of a box's four numbers.

    Attributes:
        width: Extent of the coordinates from the left to the right edge of the image: its pixels,
            or 1000, or 1.
        height: The same from top to bottom.
        layout: ``xyxy`` (two corners) or ``xywh`` (a corner and the extent).
    """

    width: float
    height: float
    layout: Layout = "xyxy"

    def __post_init__(self) -> None:
        if not (self.width > 0 and self.height > 0):
            raise ValueError(
                f"an image of {self.width} x {self.height} pixels holds no boxes; correct its size"
            )


def pixels(width: float, height: float, layout: Layout = "xyxy") -> Space:
    """Pixels of an image of this size, original or resized."""
    return Space(width, height, layout)


def thousandths(layout: Layout = "xyxy") -> Space:
    """0-1000 across the image whatever its size."""
    return Space(1000, 1000, layout)


def unit(layout: Layout = "xyxy") -> Space:
    """0-1 across the image whatever its size."""
    return Space(1, 1, layout)


def convert(box: Sequence[float], source: Space, target: Space) -> Box:
    """The same box in another space, without rounding.

    Corners in the wrong order and numbers that are not finite are converted like all others: a
    policy may write them. :func:`is_box` and :func:`check_inside` judge them.
    """
    x1, y1, x2, y2 = _corners(box, source)
    across, down = target.width / source.width, target.height / source.height
    x1, x2, y1, y2 = x1 * across, x2 * across, y1 * down, y2 * down
    return (x1, y1, x2 - x1, y2 - y1) if target.layout == "xywh" else (x1, y1, x2, y2)


def to_original(
    box: Box, space: SpaceName, original_size: Size | None, seen_size: Size | None
) -> Box:
    """A predicted box ``xyxy`` in original pixels.

    Args:
        box: ``(x1, y1, x2, y2)`` in the prediction's space.
        space: ``original`` pixels, ``resized`` pixels that the model saw, ``0-1000`` or ``0-1``.
        original_size: ``(width, height)`` of the file's image; not needed for ``original``.
        seen_size: ``(width, height)`` that the model saw; for ``resized`` only.

    Raises:
        ValueError: The space is unknown, or a size it needs is missing or not above 0.

    >>> to_original((10, 10, 20, 20), "resized", (200, 100), (100, 100))
    (20.0, 10.0, 40.0, 20.0)
    """
    if space not in get_args(SpaceName):
        raise ValueError(f"space={space!r}: known are {', '.join(get_args(SpaceName))}")
    if space == "original":
        return box
    if original_size is None:
        raise ValueError(f"space={space} needs the original image size")
    return convert(box, _space_of(space, seen_size), pixels(*original_size))


def _space_of(name: SpaceName, seen_size: Size | None) -> Space:
    if name == "0-1000":
        return thousandths()
    if name == "0-1":
        return unit()
    if seen_size is None:
        raise ValueError("space=resized needs the size that the model saw (media_sizes)")
    return pixels(*seen_size)


def is_box(box: Box) -> bool:
    """True for finite ``xyxy`` numbers that enclose an area."""
    return all(map(math.isfinite, box)) and box[0] < box[2] and box[1] < box[3]


def check_inside(box: Sequence[float], space: Space, tolerance: float = 1.0) -> Box:
    """The box as ``xyxy`` in the same space, clipped to the image.

    Args:
        box: Four numbers in ``space``.
        space: Space of the image the box is in.
        tolerance: How far the box may leave the image, in the units of ``space``.

    Raises:
        ValueError: If the box is not four finite numbers, its second corner lies before the first,
            it is empty, or it leaves the image by more than ``tolerance``: its numbers are then
            most likely of another space or of another image.
    """
    if len(box) != 4 or not all(isinstance(v, int | float) and math.isfinite(v) for v in box):
        raise ValueError(f"{list(box)} is not a box of four finite numbers")
    x1, y1, x2, y2 = _corners(box, space)
    if x2 < x1 or y2 < y1:
        raise ValueError(f"{list(box)}: the second corner lies before the first")
    if x1 < -tolerance or y1 < -tolerance:
        raise ValueError(f"{list(box)} begins outside the image")
    if x2 > space.width + tolerance or y2 > space.height + tolerance:
        raise ValueError(
            f"{list(box)} leaves the image of {space.width:g} x {space.height:g}; its numbers may "
            "be of another space (0-1000, resized pixels) or of another image"
        )
    clipped = (max(x1, 0.0), max(y1, 0.0), min(x2, space.width), min(y2, space.height))
    if not is_box(clipped):
        raise ValueError(f"{list(box)} is empty")
    return clipped


def _corners(box: Sequence[float], space: Space) -> Box:
    x1, y1, x2, y2 = map(float, box)
    return (x1, y1, x1 + x2, y1 + y2) if space.layout == "xywh" else (x1, y1, x2, y2)
