"""RL against SFT on the same canvases: where is the box, also in other looks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators.canvases import OTHER_LOOKS, plain
from datasets_prep.generators.grounding import QUESTION, SHOWN, random_box
from scripts.claims.claim import Claim, Hypothesis
from scripts.claims.scenes.scenes import ARMS, BY_RL, BY_SFT, PLAIN, Scene, Task, run

LOOKS = {PLAIN: plain, **OTHER_LOOKS}
ENLARGED = {"min_pixels": SHOWN**2, "max_pixels": SHOWN**2}


def scene(rng: np.random.Generator) -> Scene:
    box = random_box(rng)
    x1, y1, x2, y2 = box

    def draw(look: str, rng: np.random.Generator) -> Image.Image:
        return LOOKS[look](box, rng)

    said = str(list(box))
    return Scene(QUESTION, [list(box)], f"From {x1} {y1} to {x2} {y2}.", said, draw)


TASK = Task(Path(__file__).parent, "iou", scene, [*OTHER_LOOKS], ENLARGED)

CLAIM = Claim(
    title="Grounding after RL and after SFT",
    sentence="RL that learns to find a box carries over to canvases that look otherwise, and SFT "
    "on the same canvases does less.",
    source="[2504.07615](https://arxiv.org/abs/2504.07615)",
    arms=ARMS,
    run=partial(run, TASK),
    hypotheses=(
        Hypothesis(
            "On canvases that look otherwise, the greedy mean IoU is higher after RL.",
            "greedy_other",
            BY_RL,
            BY_SFT,
            0.03,
        ),
        Hypothesis(
            "The greedy mean IoU drops by more on canvases that look otherwise after SFT.",
            "greedy_drop",
            BY_SFT,
            BY_RL,
            0.03,
        ),
    ),
    shown={
        "greedy_plain": "as trained, greedy",
        "greedy_other": "otherwise, greedy",
        "greedy_drop": "drop",
        **{f"greedy_{look}": look for look in OTHER_LOOKS},
        "sampled_plain": "as trained, sampled",
        "sampled_other": "otherwise, sampled",
        "sampled_drop": "drop, sampled",
    },
    curve="mean IoU of the rollouts",
)
