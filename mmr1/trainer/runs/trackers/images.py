"""Small images for trackers."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from mmr1.trainer.runs.tracking import Row
from mmr1.types import MediaRef
from mmr1.vision.images import load_image

SIDE = 224
"""Longest side in pixels, of each image."""
_GAP = 4


def strip(images: Sequence[MediaRef]) -> Image.Image:
    """The images side by side, each scaled down so that no side is longer than :data:`SIDE`."""
    shown = [_small_image(ref) for ref in images]
    width = sum(image.width for image in shown) + _GAP * (len(shown) - 1)
    whole = Image.new("RGB", (width, max(image.height for image in shown)), "white")
    left = 0
    for image in shown:
        whole.paste(image, (left, 0))
        left += image.width + _GAP
    return whole


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Of the rows of a prompt that show the same images, the first."""
    kept: list[Row] = []
    for row in rows:
        if row.images and not any((r.id, r.images) == (row.id, row.images) for r in kept):
            kept.append(row)
    return kept


def _small_image(ref: MediaRef) -> Image.Image:
    image = load_image(ref)
    image.thumbnail((SIDE, SIDE))
    return image
