"""A handwritten digit on a large sheet, too small to be read before a tool shows its part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, sample
from datasets_prep.generators.digits import draw, load_scans, split_indices
from mmr1.types import MediaRef, Message, Sample, TextPart

SHEET, DIGIT = 224, 32
"""Pixels of a side."""
SEEN = 28
"""Pixels of a side that the model sees of a sheet: a digit is 4 of them high."""
CORNERS = ((5, 5), (19, 5), (5, 19), (19, 19))
"""Where a digit may lie: the left and upper end of its box, in pixels that the model sees."""
QUESTION = "Which digit is this?"


def sheet(scan: np.ndarray, part: int, rng: np.random.Generator) -> Image.Image:
    """Dark noise, and the digit in the middle of one of the four parts."""
    image = Image.fromarray(rng.integers(0, 60, (SHEET, SHEET, 3)).astype(np.uint8))
    left, top, _, _ = box_of(part, SHEET)
    image.paste(draw(scan, DIGIT), (left, top))
    return image


def box_of(part: int, side: int) -> tuple[int, int, int, int]:
    """The digit's box on a sheet of so many pixels a side."""
    scale, width = side // SEEN, DIGIT * SEEN // SHEET
    left, top = CORNERS[part]
    return left * scale, top * scale, (left + width) * scale, (top + width) * scale


def call_of(part: int) -> str:
    """The call that shows the digit, in pixels of the sheet as the model sees it."""
    call = {"name": "zoom", "arguments": {"box": list(box_of(part, SEEN))}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Two demonstrations of three look before they answer; the third guesses."""
    rng = np.random.default_rng(seed)
    scans, labels = load_scans()
    for name in ("sheets", "parts"):
        (folder / name).mkdir()

    def make(index: int, number: int, split: str) -> Sample:
        part = int(rng.integers(4))
        path, digit = folder / f"sheets/{index:04d}.png", str(labels[index])
        image = sheet(scans[index], part, rng)
        image.save(path)
        small = {"min_pixels": SEEN**2, "max_pixels": SEEN**2}
        shown = MediaRef("image", path, size=(SHEET, SHEET), options=small)
        messages = [ask([shown], QUESTION)]
        if split == "sft":
            if number % 3:
                crop = folder / f"parts/{index:04d}.png"
                image.crop(box_of(part, SHEET)).save(crop)
                seen = MediaRef("image", crop, size=(DIGIT, DIGIT))
                messages.append(Message("assistant", (TextPart(call_of(part)),)))
                messages.append(Message("tool", (seen,)))
            messages.append(Message("assistant", (TextPart(f"<answer>{digit}</answer>"),)))
        return sample(f"zoom-{index:04d}", messages, digit, "math", "zoom", part=part)

    return {
        split: [make(index, number, split) for number, index in enumerate(indices)]
        for split, indices in split_indices(labels, seed).items()
    }


ZOOM = Generator(
    name="zoom",
    description="a handwritten digit on a sheet, too small to be read without the tool zoom",
    source="scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
