"""GiGPO (arXiv 2505.10978): conversations are compared as wholes, and turn by turn.

``A = A_E + w A_S``: GRPO's advantage of the whole conversation, and that of the turn's discounted
return among the turns of the same state (section 4.3).
"""

from __future__ import annotations

from typing import Literal

from mmr1.algorithms import AdvantageConfig, advantage, baselines, kl_elsewhere
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.lazy import torch
from mmr1.section import Coefficient, Need, Share


@advantage(
    "gigpo",
    paper="2505.10978",
    base=AdvantageConfig,
    compares_group=True,
    per_token=True,
    needs=(
        kl_elsewhere("this advantage reads no reward that could hold a penalty"),
        Need(
            ("algorithm.advantage.type", "environment"),
            lambda c: c.environment is None or not c.environment.rewards_turns,
            "it compares the turns of conversations with tools or an environment of your own; set "
            "environment.type to tools or custom, or another advantage",
            ("environment=null",),
        ),
    ),
    example={
        "rewards": [1, 1],
        "step_rewards": [[1.0], [0.0]],
        "step_ends": [[True], [True]],
        "step_states": [[7], [7]],
        "advantages": [0.70711, -0.70711],
    },
)
def gigpo(
    step_advantage_w: Coefficient = 1.0,
    gamma: Share = 0.95,
    group_by: Literal["state", "turn"] = "state",
    scale_rewards: Literal["group", "none"] = "group",
    epsilon: Coefficient = 1e-6,
) -> Advantage:
    """GRPO's of the whole conversation, and of each turn beside those of the same state (GiGPO).

    Args:
        step_advantage_w: Weight of the turn's advantage, ω.
        gamma: Discount per turn.
        group_by: Turns of a group that are compared: those that answer the same observation, or
            those of the same number.
        scale_rewards: Divide by the deviation of those compared; none: by 1.
        epsilon: Added to the deviation.
    """
    scale = scale_rewards == "group"

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        assert x.step_rewards is not None, "the experience has the rewards of the turns"
        assert x.step_ends is not None
        assert x.step_states is not None
        whole = (
            baselines.grpo(x.rewards, x.valid, epsilon)
            if scale
            else baselines.dr_grpo(x.rewards, x.valid)
        )
        ends = x.step_ends & x.mask
        turns = baselines.gigpo_turns(x.step_rewards, ends, x.step_states, gamma, scale, epsilon)
        return (whole.flatten()[:, None] + step_advantage_w * turns) * x.mask

    return Advantage(of_tokens, turns=group_by)
