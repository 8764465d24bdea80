"""RL against SFT on the same rendered scenes: counting, also in other looks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators.common import WORDS
from datasets_prep.generators.counting import arrange
from datasets_prep.generators.solids import OTHER_LOOKS, render
from datasets_prep.generators.solids import PLAIN as PLAIN_LOOK
from scripts.claims.claim import Claim, Hypothesis
from scripts.claims.scenes.scenes import ARMS, BY_RL, BY_SFT, PLAIN, Scene, Task, run

LOOKS = {PLAIN: PLAIN_LOOK, **OTHER_LOOKS}


def scene(rng: np.random.Generator) -> Scene:
    kind, count, solids = arrange(rng)

    def draw(look: str, rng: np.random.Generator) -> Image.Image:
        return render(solids, rng, LOOKS[look])

    question, thought = f"How many {kind}s are there?", f"I see {WORDS[count]}."
    return Scene(question, str(count), thought, str(count), draw)


TASK = Task(Path(__file__).parent, "count", scene, [*OTHER_LOOKS], {})

CLAIM = Claim(
    title="Counting after RL and after SFT",
    sentence="RL that learns to count solids carries over to scenes that look otherwise, and SFT "
    "on the same scenes does less.",
    source="[R1-V](https://github.com/StarsfieldAI/R1-V); "
    "[2501.17161](https://arxiv.org/abs/2501.17161)",
    arms=ARMS,
    run=partial(run, TASK),
    hypotheses=(
        Hypothesis(
            "On scenes that look otherwise, the greedy accuracy is higher after RL.",
            "greedy_other",
            BY_RL,
            BY_SFT,
            0.03,
        ),
        Hypothesis(
            "The greedy accuracy drops by more on scenes that look otherwise after SFT.",
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
    curve="accuracy of the rollouts",
)
