"""Small images for trackers."""

from __future__ import annotations

from PIL import Image

from mmr1.types import MediaRef
from mmr1.vision.images import load_image

SIDE = 224
"""Longest side in pixels."""


def small_image(ref: MediaRef) -> Image.Image:
    """The image, scaled down so that no side is longer than :data:`SIDE`."""
    image = load_image(ref)
    image.thumbnail((SIDE, SIDE))
    return image
