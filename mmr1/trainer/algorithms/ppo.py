"""PPO (arXiv 1707.06347) as RLHF uses it (arXiv 2203.02155): a critic, GAE, a clipped ratio.

A token's reward is its KL penalty (``use_kl_loss: false``), and at the last token the completion's
reward. Advantages are normalised over the batch; the critic learns the returns before that.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms.advantages import at_end, gae, normalised
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    assert config.critic is not None, "the configuration gives PPO a critic"
    gamma, lam = config.critic.gamma, config.critic.lam

    def advantages(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None, "the loop asks the critic"
        token_rewards = at_end(x.rewards.flatten(), x.mask) - x.kl_penalty * x.mask
        return gae(token_rewards, x.values, x.mask, gamma, lam)

    def returns(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None
        return (advantages(x) + x.values) * x.mask

    algorithm = clipped_algorithm(lambda x: normalised(advantages(x), x.mask), config)
    return replace(algorithm, returns=returns)
