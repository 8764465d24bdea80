"""REINFORCE++ (arXiv 2501.03262): no critic and no group; the batch normalises the advantage.

A token-level KL penalty in the reward (``kl_in: reward``, estimator k1) and PPO's clipped ratio.
"""

from __future__ import annotations

from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm, Outcomes
from mmr1.trainer.algorithms.terms import clip_metrics, clipped_surrogate, needs_signal


def build(config: AlgorithmConfig) -> Algorithm:
    return Algorithm(
        advantages=_advantages,
        token_loss=partial(clipped_surrogate, config=config),
        aggregation=config.aggregation,
        metrics=partial(clip_metrics, config=config),
        needs_signal=needs_signal(config),
    )


def _advantages(x: Outcomes) -> torch.Tensor:
    return advantages.reinforce_pp(x.rewards.flatten(), x.kl_penalty, x.mask)
