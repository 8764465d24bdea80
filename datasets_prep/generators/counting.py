"""Rendered solids, as in CLEVR: how many of one kind are there?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import WORDS, ask, demonstrate, numbered_splits, sample
from mmr1.types import MediaRef, Sample

SIZES = {"sft": 200, "rl": 1500, "eval": 400}
CELL = 28
"""Pixels of a cell's side. A cell holds one solid and is one vision token."""
GRID = 3
SHAPES = ("sphere", "cube", "cylinder")
COLOURS = {
    "red": (230, 60, 50),
    "green": (60, 190, 80),
    "blue": (70, 110, 240),
    "gold": (230, 190, 60),
}
MAX_COUNT = 4
"""Largest number of solids of the kind in the question."""


def shade(shape: str, colour: Sequence[int], light: float) -> tuple[np.ndarray, np.ndarray]:
    """One solid lit from the upper left: ``[CELL, CELL, 3]`` colour and ``[CELL, CELL]`` mask."""
    y, x = (np.mgrid[0:CELL, 0:CELL] - (CELL - 1) / 2) / (CELL / 2)
    if shape == "sphere":
        inside = x**2 + y**2 < 0.72
        height = np.sqrt(np.clip(0.72 - x**2 - y**2, 0, None))
        bright = 0.35 + 0.75 * np.clip(height - 0.45 * x - 0.45 * y, 0, 1)
    elif shape == "cube":
        front = (np.abs(x + 0.1) < 0.62) & (np.abs(y - 0.12) < 0.62)
        top = (y < -0.5) & (y > -0.82) & (np.abs(x + 0.1 - (y + 0.5) * -0.6) < 0.62)
        inside, bright = front | top, np.where(top, 1.0, 0.62)
    else:
        body = (np.abs(x) < 0.55) & (np.abs(y) < 0.6)
        lid = (x / 0.55) ** 2 + ((y + 0.6) / 0.2) ** 2 < 1
        inside, bright = body | lid, np.where(lid, 1.0, 0.85 - 0.5 * np.abs(x + 0.2))
    return np.clip(bright[..., None] * light * np.asarray(colour), 0, 255), inside


def render(solids: Mapping[int, tuple[str, str]], rng: np.random.Generator) -> Image.Image:
    """A grey floor with noise and the solids in their cells."""
    side = CELL * GRID
    scene = np.full((side, side, 3), 120.0) + rng.normal(0, 6, (side, side, 1))
    for cell, (shape, colour) in solids.items():
        top, left = CELL * (cell // GRID), CELL * (cell % GRID)
        picture, mask = shade(shape, COLOURS[colour], float(rng.uniform(0.85, 1.1)))
        scene[top : top + CELL, left : left + CELL][mask] = picture[mask]
    return Image.fromarray(np.clip(scene, 0, 255).astype(np.uint8))


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
    """Draw every scene; the scene itself is kept in ``meta``."""
    rng = np.random.default_rng(seed)
    images = folder / "images"
    images.mkdir()

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        kind, count, solids = arrange(rng)
        path = images / f"{split}-{number:04d}.png"
        picture = render(solids, rng)
        picture.save(path)
        question = f"How many {kind}s are there?"
        messages = [ask([MediaRef("image", path, size=picture.size)], question)]
        if with_demonstration:
            messages.append(demonstrate(f"I see {WORDS[count]}.", str(count)))
        scene = [{"cell": c, "shape": s, "colour": k} for c, (s, k) in sorted(solids.items())]
        name = f"counting-{split}-{number:04d}"
        return sample(name, messages, str(count), "count", "counting", scene=scene)

    return numbered_splits(SIZES, make)


COUNTING = Generator(
    name="counting",
    description="rendered solids on a floor: how many spheres, cubes or cylinders are there?",
    source="rendered by mmr1",
    licence="Apache-2.0",
    build=build,
)
