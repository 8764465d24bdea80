"""Canvases with a box to find, in the usual look and in others."""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image

from datasets_prep.generators.grounding import OTHER_LOOKS, QUESTION, SHOWN, plain, random_box
from scripts.claims.scenes.scenes import PLAIN, Scene, Task, build_scenes

LOOKS = {PLAIN: plain, **OTHER_LOOKS}
ENLARGED = {"min_pixels": SHOWN**2, "max_pixels": SHOWN**2}


def scene(rng: np.random.Generator) -> Scene:
    box = random_box(rng)
    x1, y1, x2, y2 = box

    def draw(look: str, rng: np.random.Generator) -> Image.Image:
        return LOOKS[look](box, rng)

    said = str(list(box))
    return Scene(QUESTION, [list(box)], f"From {x1} {y1} to {x2} {y2}.", said, draw)


TASK = Task("iou", scene, [*OTHER_LOOKS], ENLARGED)
build = partial(build_scenes, TASK)
