"""A rectangle on a noisy canvas: where is it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, demonstrate, numbered_splits, sample
from mmr1.types import MediaRef, Sample

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


SIZES = {"sft": 100, "rl": 1500, "eval": 300, "eval_other": 300}
"""``eval_other`` is drawn last: the others have the same bytes with it and without."""
SHOWN = 84
"""Pixels the model sees on a side: 14 for a pixel of the canvas, one vision patch."""
QUESTION = "Where is the box?"


def random_box(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Sides of 2 to 4 pixels, anywhere."""
    width, height = (int(v) for v in rng.integers(2, 5, 2))
    left, top = int(rng.integers(0, SIDE - width + 1)), int(rng.integers(0, SIDE - height + 1))
    return left, top, left + width, top + height


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Canvases small enough that a pixel is a patch; the model sees them enlarged.

    ``eval_other`` asks the same of canvases in other looks, which ``meta`` names.
    """
    rng = np.random.default_rng(seed)
    images = folder / "images"
    images.mkdir()
    enlarged = {"min_pixels": SHOWN**2, "max_pixels": SHOWN**2}

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        box = random_box(rng)
        path = images / f"{split}-{number:04d}.png"
        draw: Draw = plain
        meta: dict[str, Any] = {}
        if split == "eval_other":
            meta["look"] = [*OTHER_LOOKS][number % len(OTHER_LOOKS)]
            draw = OTHER_LOOKS[meta["look"]]
        draw(box, rng).save(path)
        image = MediaRef("image", path, size=(SIDE, SIDE), options=enlarged)
        messages = [ask([image], QUESTION)]
        if with_demonstration:
            x1, y1, x2, y2 = box
            messages.append(demonstrate(f"From {x1} {y1} to {x2} {y2}.", str(list(box))))
        name = f"grounding-{split}-{number:04d}"
        return sample(name, messages, [list(box)], "iou", "grounding", **meta)

    return numbered_splits(SIZES, make)


GROUNDING = Generator(
    name="grounding",
    description="a rectangle on a noisy canvas: where is it? Boxes in original pixels",
    source="drawn by mmr1",
    licence="Apache-2.0",
    build=build,
)
