"""REINFORCE (Williams 1992) with a moving average of the rewards as baseline."""

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
    from mmr1.trainer.algorithms.terms import per_completion, policy_gradient_algorithm

    state: dict[str, float] = {}

    def advantage(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Against the average of the batches before; the first batch has only its own mean."""
        after = advantages.moving_average(
            state.get("baseline"), rewards, valid, config.baseline_momentum
        )
        if after is None:
            return rewards.new_zeros(rewards.shape)
        baseline = state.get("baseline", after)
        state["baseline"] = after
        return advantages.reinforce(rewards, valid, baseline)

    return replace(policy_gradient_algorithm(per_completion(advantage), config), state=state)


SPECS = (
    AlgorithmSpec(
        name="reinforce",
        advantage="r − b, b a moving average of the rewards",
        loss="−A log p, mean over tokens",
        papers=("Williams 1992",),
        use="the simplest baseline; works with n = 1",
        build=build,
        defaults={"loss_agg_mode": "token-mean"},
        reads=(
            "clip_ratio_low",
            "clip_ratio_high",
            "importance_sampling",
            "importance_sampling_level",
            "baseline_momentum",
        ),
        compares_group=False,
    ),
)
