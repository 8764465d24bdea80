"""A rectangle on a noisy canvas: where is it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, demonstrate, numbered_splits, sample
from mmr1.types import MediaRef, Sample

SIZES = {"sft": 100, "rl": 1500, "eval": 300}
SIDE = 6
"""Pixels of the canvas: coordinates are single digits, which a small model can learn."""
SHOWN = 84
"""Pixels the model sees on a side: 14 for a pixel of the canvas, one vision patch."""
QUESTION = "Where is the box?"


def draw(box: tuple[int, int, int, int], rng: np.random.Generator) -> Image.Image:
    """Dark noise, and brighter noise inside the box."""
    canvas = rng.integers(0, 110, (SIDE, SIDE, 3))
    x1, y1, x2, y2 = box
    canvas[y1:y2, x1:x2] = rng.integers(150, 256, (y2 - y1, x2 - x1, 3))
    return Image.fromarray(canvas.astype(np.uint8))


def random_box(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Sides of 2 to 4 pixels, anywhere."""
    width, height = (int(v) for v in rng.integers(2, 5, 2))
    left, top = int(rng.integers(0, SIDE - width + 1)), int(rng.integers(0, SIDE - height + 1))
    return left, top, left + width, top + height


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Canvases small enough that a pixel is a patch; the model sees them enlarged."""
    rng = np.random.default_rng(seed)
    images = folder / "images"
    images.mkdir()
    enlarged = {"min_pixels": SHOWN**2, "max_pixels": SHOWN**2}

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        box = random_box(rng)
        path = images / f"{split}-{number:04d}.png"
        draw(box, rng).save(path)
        image = MediaRef("image", path, size=(SIDE, SIDE), options=enlarged)
        messages = [ask([image], QUESTION)]
        if with_demonstration:
            x1, y1, x2, y2 = box
            messages.append(demonstrate(f"From {x1} {y1} to {x2} {y2}.", str(list(box))))
        name = f"grounding-{split}-{number:04d}"
        return sample(name, messages, [list(box)], "iou", "grounding")

    return numbered_splits(SIZES, make)


GROUNDING = Generator(
    name="grounding",
    description="a rectangle on a noisy canvas: where is it? Boxes in original pixels",
    source="drawn by mmr1",
    licence="Apache-2.0",
    build=build,
)
