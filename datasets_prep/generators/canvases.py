"""Pictures of a box on a canvas, in the usual look and in others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

SIDE = 6
"""Pixels of the canvas: coordinates are single digits, which a small model can learn."""
Box = tuple[int, int, int, int]
Draw = Callable[[Box, np.random.Generator], Image.Image]


def plain(box: Box, rng: np.random.Generator) -> Image.Image:
    """Dark noise, and brighter noise inside the box."""
    return boxed(noise(rng, 0, 110), box, lambda shape: rng.integers(150, 256, shape))


def dark(box: Box, rng: np.random.Generator) -> Image.Image:
    """A dark box on bright noise."""
    return boxed(noise(rng, 150, 256), box, lambda shape: rng.integers(0, 110, shape))


def coloured(box: Box, rng: np.random.Generator) -> Image.Image:
    """A box of one light colour on a ground of a dark one."""
    ground = np.broadcast_to(rng.integers(0, 110, 3), (SIDE, SIDE, 3)).copy()
    return boxed(ground, box, lambda shape: np.broadcast_to(rng.integers(150, 256, 3), shape))


def gradient(box: Box, rng: np.random.Generator) -> Image.Image:
    """A ground that brightens to one side, and a box that is a constant brighter."""
    ramp = np.linspace(0, 120, SIDE)[:: int(rng.choice([-1, 1]))]
    ramp = np.broadcast_to(ramp, (SIDE, SIDE))
    ground = np.repeat((ramp.T if rng.random() < 0.5 else ramp)[..., None], 3, axis=2).astype(int)
    x1, y1, x2, y2 = box
    return boxed(ground, box, lambda _: ground[y1:y2, x1:x2] + 130)


def outlined(box: Box, rng: np.random.Generator) -> Image.Image:
    """Dark noise inside a bright frame too: a box of 2 pixels has nothing but a frame."""
    x1, y1, x2, y2 = box
    ground = noise(rng, 0, 110)
    inner = ground[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1].copy()
    ground[y1:y2, x1:x2] = rng.integers(150, 256, (y2 - y1, x2 - x1, 3))
    ground[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] = inner
    return Image.fromarray(ground.astype(np.uint8))


OTHER_LOOKS: dict[str, Draw] = {
    "dark": dark,
    "coloured": coloured,
    "gradient": gradient,
    "outlined": outlined,
}


def noise(rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    return rng.integers(low, high, (SIDE, SIDE, 3))


def boxed(
    ground: np.ndarray, box: Box, fill: Callable[[tuple[int, int, int]], np.ndarray]
) -> Image.Image:
    """The ground with the box filled in."""
    x1, y1, x2, y2 = box
    ground[y1:y2, x1:x2] = fill((y2 - y1, x2 - x1, 3))
    return Image.fromarray(ground.astype(np.uint8))
