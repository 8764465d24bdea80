"""GRPO (arXiv 2402.03300, section 4.1), Dr.GRPO (2503.20783) or by the batch (2508.08221)."""

from __future__ import annotations

from functools import partial
from typing import Literal

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, per_completion
from mmr1.section import Coefficient, Need


@advantage(
    "grpo",
    paper=("2402.03300", "2503.20783", "2508.08221"),
    compares_group=True,
    needs=(
        Need(
            ("algorithm.advantage.epsilon",),
            lambda c: (
                c.algorithm.advantage.scale_rewards == "none"
                and "epsilon" in c.algorithm.advantage.model_fields_set
            ),
            "nothing is divided by a deviation; set algorithm.advantage.scale_rewards, or leave it "
            "out",
            ("algorithm.advantage.scale_rewards=none", "algorithm.advantage.epsilon=1e-4"),
            warns=True,
        ),
    ),
    example={"rewards": [1, 0, 0, 1], "advantages": [0.86602, -0.86602, -0.86602, 0.86602]},
)
def grpo(
    scale_rewards: Literal["group", "batch", "none"] = "group", epsilon: Coefficient = 1e-6
) -> Advantage:
    """(r − mean) / deviation.

    Args:
        scale_rewards: Set whose deviation divides r − group mean (TRL).
        epsilon: Added to the deviation; TRL, R1-V and their forks have 1e-4.
    """
    if scale_rewards == "none":
        return Advantage(per_completion(baselines.dr_grpo))
    scaled = baselines.grpo if scale_rewards == "group" else baselines.batch_std
    return Advantage(per_completion(partial(scaled, eps=epsilon)))


preset("grpo", "the usual first choice", advantage="grpo", papers="2402.03300")
preset(
    "dr_grpo",
    "no bias by length or difficulty",
    advantage={"type": "grpo", "scale_rewards": "none"},
    loss={"type": "ppo", "agg_mode": "seq-mean-token-sum-norm"},
    papers="2503.20783",
)
