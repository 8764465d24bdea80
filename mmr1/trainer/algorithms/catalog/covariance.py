"""Clip-Cov and KL-Cov (arXiv 2505.22617): fewer updates of the tokens that lower the entropy most.

These are tokens whose log-prob and advantage covary. Clip-Cov takes a few of them out of the loss,
drawn at random. KL-Cov holds those of the highest covariance near the policy before the update.
The values are those of the authors' code. It measures KL-Cov's KL by ``|log rho|``, and clips the
ratio of Clip-Cov to within 0 and 2, which the paper does not mention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec, Requirement

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs, UpdateTokens


def build_clip_cov(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms import token_choice
    from mmr1.trainer.algorithms.terms import (
        clip_metrics,
        clipped_surrogate,
        composed_algorithm,
        group_advantage,
    )

    state = {"mini_batches": 0.0}  # seeds the draw

    def choose(x: UpdateTokens) -> torch.Tensor:
        state["mini_batches"] += 1
        covariance = token_choice.covariances(x.logprobs, x.advantages, x.mask)
        bounds = (config.clip_cov_lb, config.clip_cov_ub)
        seed = int(state["mini_batches"])
        return token_choice.clip_cov(covariance, config.clip_cov_ratio, *bounds, seed)

    def token_loss(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        return clipped_surrogate(x, config).masked_fill(x.chosen, 0.0)

    algorithm = composed_algorithm(
        group_advantage("grpo", config), token_loss, config, lambda x: clip_metrics(x, config)
    )
    return replace(algorithm, choose=choose, state=state)


def build_kl_cov(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms import losses, token_choice
    from mmr1.trainer.algorithms.kl import absolute
    from mmr1.trainer.algorithms.terms import composed_algorithm, group_advantage, ratio_logprobs

    def choose(x: UpdateTokens) -> torch.Tensor:
        covariance = token_choice.covariances(x.logprobs, x.advantages, x.mask)
        return token_choice.kl_cov(covariance, config.kl_cov_ratio)

    def token_loss(x: LossInputs) -> torch.Tensor:
        return -losses.ratio(*ratio_logprobs(x, config)) * x.advantages

    algorithm = composed_algorithm(group_advantage("grpo", config), token_loss, config)

    def penalties(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        to_old = config.kl_cov_coef * absolute(x.logprobs, x.old_logprobs)
        return algorithm.penalties(x) + to_old * x.chosen

    return replace(algorithm, choose=choose, penalties=penalties)


SPECS = (
    AlgorithmSpec(
        name="clip_cov",
        advantage="as GRPO",
        loss="clipped at 0 and 2, 0 for some tokens of high covariance, mean over tokens",
        papers=("2505.22617",),
        use="the entropy collapses",
        build=build_clip_cov,
        defaults={"loss_agg_mode": "token-mean", "clip_ratio_low": 1.0, "clip_ratio_high": 1.0},
        reads=(
            "adv_estimator",
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_dual",
            "importance_sampling_level",
            "clip_cov_ratio",
            "clip_cov_lb",
            "clip_cov_ub",
        ),
        requires=(
            Requirement(
                lambda config: config.clip_cov_lb < config.clip_cov_ub,
                "clip_cov_lb is not below clip_cov_ub, so no token lies between them; lower the "
                "first or raise the second",
            ),
        ),
    ),
    AlgorithmSpec(
        name="kl_cov",
        advantage="as GRPO",
        loss="−ρA, + c |log ρ| for the tokens of highest covariance, mean over tokens",
        papers=("2505.22617",),
        use="the entropy collapses",
        build=build_kl_cov,
        defaults={"loss_agg_mode": "token-mean"},
        reads=("adv_estimator", "importance_sampling_level", "kl_cov_ratio", "kl_cov_coef"),
        requires=(
            Requirement(
                lambda config: config.has_several_updates,
                "kl_cov holds tokens near the policy that sampled, from which the first update "
                "does not differ; set ppo_mini_batch_size, or ppo_epochs above 1",
            ),
        ),
    ),
)
