"""PPO's advantage (arXiv 1707.06347) as RLHF uses it (arXiv 2203.02155): a critic and GAE.

A token's reward is minus its KL penalty (``algorithm.kl.type: reward``); the last token's also
holds the completion's reward. Advantages are normalised over the batch. The critic learns the
returns from before the normalisation.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mmr1.algorithms import RewardAdvantage, advantage, preset
from mmr1.algorithms.baselines import at_end, gae, normalised
from mmr1.algorithms.critic import CriticConfig
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.lazy import torch
from mmr1.section import Fraction, Share


class GaeAdvantage(RewardAdvantage):
    """PPO's, with a critic: GAE(γ, λ), normalised over the batch."""

    per_token: ClassVar[bool] = True
    type: Literal["gae"] = "gae"
    gamma: Share = Field(1.0, description="Discount per token")
    lam: Fraction = Field(1.0, description="λ of GAE; 1: the return less the value")
    critic: CriticConfig = CriticConfig()


@advantage(
    "gae",
    paper=("1707.06347", "1506.02438", "2203.02155"),
    section=GaeAdvantage,
    example={"rewards": [1, 0], "values": [[0.5], [0.5]], "advantages": [1, -1]},
)
def build(section: GaeAdvantage) -> Advantage:
    def estimate(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None, "the loop asks the critic"
        token_rewards = at_end(x.rewards.flatten(), x.mask) - x.kl_penalty * x.mask
        return gae(token_rewards, x.values, x.mask, section.gamma, section.lam, x.final_values)

    def returns(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None
        return (estimate(x) + x.values) * x.mask

    return Advantage(lambda x: normalised(estimate(x), x.mask), returns=returns)


preset(
    "ppo",
    "an advantage per token; works with n = 1, at the cost of a second model",
    advantage="gae",
    kl="reward",
)
