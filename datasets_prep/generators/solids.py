"""Pictures of solids in a grid of cells, in the usual look and in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

CELL = 28
"""Pixels of a cell's side. A cell holds one solid and is one vision token."""
GRID = 3
SIDE = CELL * GRID
SHAPES = ("sphere", "cube", "cylinder")
RGB = tuple[int, int, int]
Solids = Mapping[int, tuple[str, str]]
"""Shape and colour by cell."""
COLOURS: dict[str, RGB] = {
    "red": (230, 60, 50),
    "green": (60, 190, 80),
    "blue": (70, 110, 240),
    "gold": (230, 190, 60),
}
PAINTS: tuple[RGB, ...] = ((240, 60, 230), (40, 235, 245), (250, 130, 20), (235, 235, 235))
"""Colours that no solid of the usual look has."""


def shade(shape: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Brightness of a solid lit from the upper left, and its mask; its cell is from -1 to 1."""
    if shape == "sphere":
        inside = x**2 + y**2 < 0.72
        height = np.sqrt(np.clip(0.72 - x**2 - y**2, 0, None))
        return 0.35 + 0.75 * np.clip(height - 0.45 * x - 0.45 * y, 0, 1), inside
    if shape == "cube":
        front = (np.abs(x + 0.1) < 0.62) & (np.abs(y - 0.12) < 0.62)
        top = (y < -0.5) & (y > -0.82) & (np.abs(x + 0.1 - (y + 0.5) * -0.6) < 0.62)
        return np.where(top, 1.0, 0.62), front | top
    body = (np.abs(x) < 0.55) & (np.abs(y) < 0.6)
    lid = (x / 0.55) ** 2 + ((y + 0.6) / 0.2) ** 2 < 1
    return np.where(lid, 1.0, 0.85 - 0.5 * np.abs(x + 0.2)), body | lid


def grey(rng: np.random.Generator) -> np.ndarray:
    """A grey floor with noise."""
    return np.full((SIDE, SIDE, 3), 120.0) + rng.normal(0, 6, (SIDE, SIDE, 1))


def bright(rng: np.random.Generator) -> np.ndarray:
    """A light colour without noise."""
    return np.full((SIDE, SIDE, 3), rng.integers(170, 220, 3).astype(float))


def striped(rng: np.random.Generator) -> np.ndarray:
    """Slanting stripes of two greys."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    slant, width = int(rng.choice([-1, 1])), int(rng.integers(4, 9))
    stripes = (x + slant * y) // width % 2
    return np.repeat(np.where(stripes == 0, 90.0, 150.0)[..., None], 3, axis=2)


@dataclass(frozen=True, slots=True)
class Look:
    """The look of scenes.

    Attributes:
        smallest: Size of the smallest solid, as a share of the usual one. A small solid lies
            anywhere in its cell.
        painted: Solids have one of :data:`PAINTS` and not their colours.
        flat: One colour all over a solid, as if cut out of paper.
    """

    ground: Callable[[np.random.Generator], np.ndarray] = grey
    smallest: float = 1.0
    painted: bool = False
    flat: bool = False


PLAIN = Look()
OTHER_LOOKS = {
    "flat": Look(ground=bright, flat=True),
    "small": Look(smallest=0.6),
    "painted": Look(painted=True),
    "striped": Look(ground=striped),
}


def render(solids: Solids, rng: np.random.Generator, look: Look = PLAIN) -> Image.Image:
    """A ground and the solids in their cells."""
    scene = look.ground(rng)
    y, x = (np.mgrid[0:CELL, 0:CELL] - (CELL - 1) / 2) / (CELL / 2)
    for cell, (shape, colour) in solids.items():
        top, left = CELL * (cell // GRID), CELL * (cell % GRID)
        light = float(rng.uniform(0.85, 1.1))
        paint = PAINTS[rng.integers(len(PAINTS))] if look.painted else COLOURS[colour]
        size, right, down = placed(look, rng)
        brightness, mask = shade(shape, (x - right) / size, (y - down) / size)
        if look.flat:
            brightness = np.full_like(brightness, 0.8)
        picture = np.clip(brightness[..., None] * light * np.asarray(paint), 0, 255)
        scene[top : top + CELL, left : left + CELL][mask] = picture[mask]
    return Image.fromarray(np.clip(scene, 0, 255).astype(np.uint8))


def placed(look: Look, rng: np.random.Generator) -> tuple[float, float, float]:
    """Size of a solid, and how far it is from the middle of its cell."""
    if look.smallest == 1.0:
        return 1.0, 0.0, 0.0
    size = rng.uniform(look.smallest, 0.8)
    right, down = rng.uniform(size - 1, 1 - size, 2)
    return float(size), float(right), float(down)
