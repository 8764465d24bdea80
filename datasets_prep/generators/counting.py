"""Rendered solids, as in CLEVR: how many of one kind are there?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.common import WORDS, ask, demonstrate, numbered_splits, sample
from datasets_prep.generators.solids import COLOURS, GRID, OTHER_LOOKS, PLAIN, SHAPES, render
from mmr1.types import MediaRef, Sample

SIZES = {"sft": 200, "rl": 1500, "eval": 400, "eval_other": 400}
"""``eval_other`` is drawn last: the others have the same bytes with it and without."""
MAX_COUNT = 4
"""Largest number of solids of the kind in the question."""


def arrange(rng: np.random.Generator) -> tuple[str, int, dict[int, tuple[str, str]]]:
    """A kind, how many there are of it (all counts equally often), and every solid's cell."""
    kind = str(rng.choice(SHAPES))
    count, other_count = int(rng.integers(0, MAX_COUNT + 1)), int(rng.integers(1, 4))
    other_shapes = [s for s in SHAPES if s != kind]
    shapes = [kind] * count + [str(rng.choice(other_shapes)) for _ in range(other_count)]
    cells = rng.permutation(GRID * GRID)[: len(shapes)]
    colours = rng.choice(sorted(COLOURS), len(shapes))
    solids = {int(c): (s, str(k)) for c, s, k in zip(cells, shapes, colours, strict=True)}
    return kind, count, solids


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Draw every scene; the scene itself is kept in ``meta``.

    ``eval_other`` asks the same of scenes in other looks, which ``meta`` names.
    """
    rng = np.random.default_rng(seed)
    images = folder / "images"
    images.mkdir()

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        kind, count, solids = arrange(rng)
        path = images / f"{split}-{number:04d}.png"
        look = PLAIN
        meta: dict[str, Any] = {}
        if split == "eval_other":
            meta["look"] = [*OTHER_LOOKS][number % len(OTHER_LOOKS)]
            look = OTHER_LOOKS[meta["look"]]
        picture = render(solids, rng, look)
        picture.save(path)
        question = f"How many {kind}s are there?"
        messages = [ask([MediaRef("image", path, size=picture.size)], question)]
        if with_demonstration:
            messages.append(demonstrate(f"I see {WORDS[count]}.", str(count)))
        scene = [{"cell": c, "shape": s, "colour": k} for c, (s, k) in sorted(solids.items())]
        name = f"counting-{split}-{number:04d}"
        return sample(name, messages, str(count), "count", "counting", scene=scene, **meta)

    return numbered_splits(SIZES, make)


COUNTING = Generator(
    name="counting",
    description="rendered solids on a floor: how many spheres, cubes or cylinders are there?",
    source="rendered by mmr1",
    licence="Apache-2.0",
    build=build,
)
