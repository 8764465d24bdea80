"""Two real handwritten digits in one picture: what is their sum?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import WORDS, ask, demonstrate, numbered_splits, sample
from datasets_prep.generators.digits import SIDE, draw, load_scans
from mmr1.types import MediaRef, Sample

SIZES = {"sft": 200, "rl": 2000, "eval": 500}
QUESTION = "What is the sum of the digits?"


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Pairs of scans; a scan that is held out appears in no other split."""
    scans, labels = load_scans()
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(scans))
    pools = {"eval": shuffled[:500], "sft": shuffled[500:], "rl": shuffled[500:]}
    images = folder / "images"
    images.mkdir()

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        pair = [int(i) for i in rng.choice(pools[split], 2)]
        canvas = Image.new("RGB", (2 * SIDE, SIDE))
        for place, index in enumerate(pair):
            canvas.paste(draw(scans[index]), (place * SIDE, 0))
        path = images / f"{split}-{number:04d}.png"
        canvas.save(path)
        left, right = (int(labels[i]) for i in pair)
        messages = [ask([MediaRef("image", path, size=canvas.size)], QUESTION)]
        if with_demonstration:
            thought = f"{WORDS[left]} and {WORDS[right]} make {left + right}."
            messages.append(demonstrate(thought, str(left + right)))
        name = f"digit-sums-{split}-{number:04d}"
        return sample(
            name, messages, str(left + right), "count", "digit-sums", digits=[left, right]
        )

    return numbered_splits(SIZES, make)


DIGIT_SUMS = Generator(
    name="digit-sums",
    description="two real handwritten digits side by side: what is their sum?",
    source="scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
