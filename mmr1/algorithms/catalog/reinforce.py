"""REINFORCE (Williams 1992): a mean of the rewards as baseline; the plain policy gradient."""

from __future__ import annotations

import torch

from mmr1.algorithms import baselines, ratios
from mmr1.algorithms.interface import Advantage, Loss, LossInputs, discounted, per_completion
from mmr1.config import ReinforceAdvantage, ReinforceLoss

MOMENTUM = 0.9
"""Of the moving average that is the baseline."""


def build_advantage(section: ReinforceAdvantage) -> Advantage:
    state: dict[str, float] = {}

    def advantage(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Rewards less the mean of the batches before; the first batch has only its own mean."""
        if not valid.any():
            return rewards.new_zeros(rewards.shape)
        count, mean = int(valid.sum()), float(rewards[valid].mean())
        if section.baseline == "batch_mean":
            return baselines.reinforce(rewards, valid, mean)
        before, seen = state.get("baseline", mean), state.get("rewards", 0.0)
        momentum = MOMENTUM if section.baseline == "moving_average" else seen / (seen + count)
        state["baseline"] = baselines.moving_average(before, mean, momentum)
        state["rewards"] = seen + count
        return baselines.reinforce(rewards, valid, before)

    return Advantage(discounted(per_completion(advantage), section.gamma), state=state)


def build_loss(section: ReinforceLoss) -> Loss:
    """``-A log p``, weighted for the policy that sampled where there are several updates."""
    form = section.importance
    if form == "none":
        return Loss(lambda x: ratios.policy_gradient(x.logprobs, x.advantages))

    def weighted(x: LossInputs) -> torch.Tensor:
        weights = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, form)
        return ratios.policy_gradient(x.logprobs, x.advantages) * weights

    return Loss(weighted, of_steps=_of_steps if form == "per_decision" else None)


def _of_steps(x: LossInputs) -> torch.Tensor:
    """``-A log p`` with each step's reward weighted by the ratios up to its end."""
    weights = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, "per_decision")
    return ratios.policy_gradient(x.logprobs, ratios.per_decision_returns(x.advantages, weights))
