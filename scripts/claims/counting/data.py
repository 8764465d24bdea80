"""Rendered solids to count, in the usual look and in others."""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image

from datasets_prep.generators.common import WORDS
from datasets_prep.generators.counting import arrange
from datasets_prep.generators.solids import OTHER_LOOKS, render
from datasets_prep.generators.solids import PLAIN as PLAIN_LOOK
from scripts.claims.scenes.scenes import PLAIN, Scene, Task, build_scenes

LOOKS = {PLAIN: PLAIN_LOOK, **OTHER_LOOKS}


def scene(rng: np.random.Generator) -> Scene:
    kind, count, solids = arrange(rng)

    def draw(look: str, rng: np.random.Generator) -> Image.Image:
        return render(solids, rng, LOOKS[look])

    question, thought = f"How many {kind}s are there?", f"I see {WORDS[count]}."
    return Scene(question, str(count), thought, str(count), draw)


TASK = Task("count", scene, [*OTHER_LOOKS], {})
build = partial(build_scenes, TASK)
