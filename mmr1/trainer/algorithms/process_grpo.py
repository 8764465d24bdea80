"""GRPO with process supervision (arXiv 2402.03300): the steps of a completion are rewarded.

``algorithm.step_rewards`` names what rewards them; the outcome's reward is only logged.
"""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(_advantages, config)


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    assert x.step_rewards is not None, "process supervision needs step rewards"
    assert x.step_ends is not None
    shape = (*x.rewards.shape, -1)  # [G, n, R]
    ends = (x.step_ends & x.mask).view(shape)
    found = advantages.process_supervision(x.step_rewards.view(shape), ends)
    return found.flatten(0, 1) * x.mask
