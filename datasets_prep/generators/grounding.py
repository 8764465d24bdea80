"""A rectangle on a noisy canvas: where is it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.canvases import OTHER_LOOKS, SIDE, Draw, plain
from datasets_prep.generators.common import ask, demonstrate, numbered_splits, sample
from mmr1.types import MediaRef, Sample

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
