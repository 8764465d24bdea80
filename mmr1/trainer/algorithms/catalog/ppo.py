"""PPO (arXiv 1707.06347) as RLHF uses it (arXiv 2203.02155): a critic, GAE, a clipped ratio.

A token's reward is minus its KL penalty (``use_kl_loss: false``); the last token's also holds the
completion's reward. Advantages are normalised over the batch. The critic learns the returns from
before the normalisation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec, Requirement

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms.advantages import at_end, gae, normalised
    from mmr1.trainer.algorithms.terms import clipped_algorithm

    assert config.critic is not None, "the configuration gives PPO a critic"
    gamma, lam = config.critic.gamma, config.critic.lam

    def advantages(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None, "the loop asks the critic"
        token_rewards = at_end(x.rewards.flatten(), x.mask) - x.kl_penalty * x.mask
        return gae(token_rewards, x.values, x.mask, gamma, lam, x.final_values)

    def returns(x: AdvantageInputs) -> torch.Tensor:
        assert x.values is not None
        return (advantages(x) + x.values) * x.mask

    algorithm = clipped_algorithm(lambda x: normalised(advantages(x), x.mask), config)
    return replace(algorithm, returns=returns)


SPECS = (
    AlgorithmSpec(
        name="ppo",
        advantage="GAE(γ, λ) with a critic's values, normalised over the batch",
        loss="clipped, mean over tokens; a KL penalty per token in the reward",
        papers=("1707.06347", "1506.02438", "2203.02155"),
        use="an advantage per token; works with n = 1, at the cost of a second model",
        build=build,
        defaults={
            "loss_agg_mode": "token-mean",
            "use_kl_loss": False,
            "kl_estimator": "k1",
            "critic": {},
        },
        reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_dual", "critic"),
        compares_group=False,
        requires=(
            Requirement(
                lambda config: config.critic is not None,
                "ppo needs a critic and critic is null; leave algorithm.critic out for the "
                "defaults, or use an algorithm without one, such as reinforce_pp",
            ),
        ),
    ),
)
