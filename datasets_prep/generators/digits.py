"""Real handwritten digits: which digit is this?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from mmr1.extras import needs_extra
from mmr1.types import MediaRef, Message, Sample, TextPart

SIDE = 56
"""Pixels; a grid of 2 x 2 vision tokens of 28 pixels a side."""
QUESTION = "Which digit is this?"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DEMONSTRATIONS_PER_DIGIT = 6
HELD_OUT = 500


def load_scans() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's scans, ``[1797, 8, 8]`` grey values of 0–16, and their digits ``[1797]``."""
    with needs_extra("data", "mmr1-data make digits"):
        from sklearn.datasets import load_digits
    scans = load_digits()
    return scans.images, scans.target


def draw(scan: np.ndarray, side: int = SIDE) -> Image.Image:
    """One scan ``[8, 8]`` as an RGB image, its pixels enlarged to squares, ink white on black."""
    grey = Image.fromarray(np.round(scan * (255 / 16)).astype(np.uint8))
    return grey.resize((side, side), Image.Resampling.NEAREST).convert("RGB")


def split_indices(labels: np.ndarray, seed: int) -> dict[str, list[int]]:
    """Disjoint indices of ``sft`` (balanced over the digits), ``eval`` and ``rl`` (the rest)."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    demonstrations = {
        int(index)
        for digit in range(10)
        for index in shuffled[labels[shuffled] == digit][:DEMONSTRATIONS_PER_DIGIT]
    }
    others = [int(index) for index in shuffled if int(index) not in demonstrations]
    in_order = [int(index) for index in shuffled if int(index) in demonstrations]
    return {"sft": in_order, "rl": others[HELD_OUT:], "eval": others[:HELD_OUT]}


def demonstration(digit: int) -> Message:
    """A thought that names the digit in words, so that thought and answer can be compared."""
    text = f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"
    return Message("assistant", (TextPart(text),))


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Write every scan once as PNG and return the samples of the three splits."""
    scans, labels = load_scans()
    images = folder / "images"
    images.mkdir()
    for index, scan in enumerate(scans):
        draw(scan).save(images / f"{index:04d}.png")

    def sample(index: int, with_demonstration: bool) -> Sample:
        image = MediaRef("image", images / f"{index:04d}.png", size=(SIDE, SIDE))
        question = Message("user", (image, TextPart(QUESTION)))
        digit = int(labels[index])
        messages = (question, demonstration(digit)) if with_demonstration else (question,)
        return Sample(f"digits-{index:04d}", messages, str(digit), "math", "digits")

    return {
        split: [sample(index, with_demonstration=split == "sft") for index in indices]
        for split, indices in split_indices(labels, seed).items()
    }


DIGITS = Generator(
    name="digits",
    description="1,797 real scans of handwritten digits: which digit is this?",
    source="scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
