"""GiGPO (arXiv 2505.10978): conversations are compared as wholes, and turn by turn.

``A = A_E + w A_S``: GRPO's advantage of the whole conversation, and that of the turn's discounted
return among the turns of the same state (section 4.3).
"""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import dr_grpo, gigpo_turns, grpo
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.config import GigpoAdvantage


def build(section: GigpoAdvantage) -> Advantage:
    scale, eps = section.scale_rewards == "group", section.epsilon

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        assert x.step_rewards is not None, "the experience has the rewards of the turns"
        assert x.step_ends is not None
        assert x.step_states is not None
        whole = grpo(x.rewards, x.valid, eps) if scale else dr_grpo(x.rewards, x.valid)
        ends = x.step_ends & x.mask
        turns = gigpo_turns(x.step_rewards, ends, x.step_states, section.gamma, scale, eps)
        return (whole.flatten()[:, None] + section.step_advantage_w * turns) * x.mask

    return Advantage(of_tokens, turns=section.group_by)
