"""REINFORCE++ (arXiv 2501.03262): no critic and no group; the batch normalises the advantage.

A token-level KL penalty in the reward (``use_kl_loss: false``, estimator k1) and PPO's clipped
ratio.
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
    return advantages.reinforce_pp(x.rewards.flatten(), x.kl_penalty, x.mask)
