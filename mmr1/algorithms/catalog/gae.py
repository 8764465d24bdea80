"""PPO's advantage (arXiv 1707.06347) as RLHF uses it (arXiv 2203.02155): a critic and GAE.

A token's reward is minus its KL penalty (``algorithm.kl.type: reward``); the last token's also
holds the completion's reward. Advantages are normalised over the batch. The critic learns the
returns from before the normalisation.
"""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import at_end, gae, normalised
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.config import GaeAdvantage


def build(section: GaeAdvantage) -> Advantage:
    def estimate(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None, "the loop asks the critic"
        token_rewards = at_end(x.rewards.flatten(), x.mask) - x.kl_penalty * x.mask
        return gae(token_rewards, x.values, x.mask, section.gamma, section.lam, x.final_values)

    def returns(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None
        return (estimate(x) + x.values) * x.mask

    return Advantage(lambda x: normalised(estimate(x), x.mask), returns=returns)
