"""REINFORCE (Williams 1992): a mean of the rewards as baseline."""

from __future__ import annotations

from typing import Literal

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, discounted, per_completion
from mmr1.lazy import torch
from mmr1.section import Share

MOMENTUM = 0.9
"""Of the moving average that is the baseline."""


@advantage(
    "reinforce",
    paper="Williams 1992",
    example={"rewards": [1, 0, 0, 1], "advantages": [0.5, -0.5, -0.5, 0.5]},
)
def reinforce(
    baseline: Literal["moving_average", "mean", "batch_mean"] = "moving_average",
    gamma: Share = 1.0,
) -> Advantage:
    """r − a baseline.

    Args:
        baseline: Mean of rewards; moving_average: over batches, with momentum 0.9, mean: of
            all rewards so far, batch_mean: of the batch's own.
        gamma: Discount per token.
    """
    state: dict[str, float] = {}

    def of_completions(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Rewards less the mean of the batches before; the first batch has only its own mean."""
        if not valid.any():
            return rewards.new_zeros(rewards.shape)
        count, mean = int(valid.sum()), float(rewards[valid].mean())
        if baseline == "batch_mean":
            return baselines.reinforce(rewards, valid, mean)
        before, seen = state.get("baseline", mean), state.get("rewards", 0.0)
        momentum = MOMENTUM if baseline == "moving_average" else seen / (seen + count)
        state["baseline"] = baselines.moving_average(before, mean, momentum)
        state["rewards"] = seen + count
        return baselines.reinforce(rewards, valid, before)

    return Advantage(discounted(per_completion(of_completions), gamma), state=state)


preset("reinforce", "the simplest baseline; works with n = 1", advantage="reinforce")
