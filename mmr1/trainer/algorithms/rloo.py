"""RLOO (arXiv 2402.14740): the mean of the other completions as baseline.

The paper's estimator weighs the log-probability of a whole completion; with one update per rollout
that is the plain policy gradient. With several, PPO's clipped ratio keeps the update near the
policy that sampled.
"""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer import advantages, losses
from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs
from mmr1.trainer.algorithms.terms import kl_metrics, regularised


def build(config: AlgorithmConfig) -> Algorithm:
    clip = (config.clip_low, config.clip_high)

    def token_loss(x: LossInputs) -> torch.Tensor:
        if config.updates_per_rollout == 1:
            loss = losses.policy_gradient(x.logprobs, x.advantages)
        else:
            loss = losses.ppo_clip(x.logprobs, x.old_logprobs, x.advantages, *clip)
        return regularised(loss, x, config)

    return Algorithm(
        advantages=advantages.rloo,
        token_loss=token_loss,
        aggregation=config.aggregation or "token",
        metrics=kl_metrics,
        needs_signal=config.kl_coef == 0 and config.entropy_coef == 0,
    )
