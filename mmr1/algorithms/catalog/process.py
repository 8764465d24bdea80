"""GRPO with process supervision (arXiv 2402.03300, section 4.1.3): each step has a reward.

The function that ``algorithm.advantage.step_rewards`` names gives the rewards of the steps. The
completion's own reward is only logged.
"""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import process_supervision
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.config import ProcessAdvantage


def build(section: ProcessAdvantage) -> Advantage:
    return Advantage(_of_tokens, step_supervision=True)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    assert x.step_rewards is not None, "process supervision needs step rewards"
    assert x.step_ends is not None
    shape = (*x.rewards.shape, -1)  # [G, n, R]
    ends = (x.step_ends & x.mask).view(shape)
    return process_supervision(x.step_rewards.view(shape), ends).flatten(0, 1) * x.mask
