"""REINFORCE (Williams 1992) with a mean of the rewards as baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms import advantages
    from mmr1.trainer.algorithms.terms import (
        discounted,
        per_completion,
        policy_gradient_algorithm,
    )

    state: dict[str, float] = {}

    def advantage(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Against the mean of the batches before; the first batch has only its own mean."""
        if not valid.any():
            return rewards.new_zeros(rewards.shape)
        count, mean = int(valid.sum()), float(rewards[valid].mean())
        if config.baseline == "batch_mean":
            return advantages.reinforce(rewards, valid, mean)
        before, seen = state.get("baseline", mean), state.get("rewards", 0.0)
        is_average = config.baseline == "moving_average"
        momentum = config.baseline_momentum if is_average else seen / (seen + count)
        state["baseline"] = advantages.moving_average(before, mean, momentum)
        state["rewards"] = seen + count
        return advantages.reinforce(rewards, valid, before)

    of_tokens = discounted(per_completion(advantage), config.gamma)
    return replace(policy_gradient_algorithm(of_tokens, config), state=state)


SPECS = (
    AlgorithmSpec(
        name="reinforce",
        advantage="r − b, b a moving average of the rewards, or their mean",
        loss="−A log p, mean over tokens",
        papers=("Williams 1992",),
        use="the simplest baseline; works with n = 1",
        build=build,
        defaults={"loss_agg_mode": "token-mean"},
        reads=(
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_dual",
            "importance_sampling",
            "importance_sampling_level",
            "baseline",
            "baseline_momentum",
            "gamma",
        ),
        compares_group=False,
    ),
)
