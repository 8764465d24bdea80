"""REINFORCE (Williams 1992): a mean of the rewards as baseline; the plain policy gradient."""

from __future__ import annotations

import torch

from mmr1.config import ReinforceAdvantage, ReinforceLoss
from mmr1.trainer.algorithms import advantages, losses
from mmr1.trainer.algorithms.algorithm import (
    Advantage,
    Loss,
    LossInputs,
    discounted,
    per_completion,
)

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
            return advantages.reinforce(rewards, valid, mean)
        before, seen = state.get("baseline", mean), state.get("rewards", 0.0)
        momentum = MOMENTUM if section.baseline == "moving_average" else seen / (seen + count)
        state["baseline"] = advantages.moving_average(before, mean, momentum)
        state["rewards"] = seen + count
        return advantages.reinforce(rewards, valid, before)

    return Advantage(discounted(per_completion(advantage), section.gamma), state=state)


def build_loss(section: ReinforceLoss) -> Loss:
    """``-A log p``, weighted for the policy that sampled where there are several updates."""
    form = section.importance
    if form == "none":
        return Loss(lambda x: losses.policy_gradient(x.logprobs, x.advantages))

    def weighted(x: LossInputs) -> torch.Tensor:
        weights = losses.importance_weights(x.logprobs, x.old_logprobs, x.mask, form)
        return losses.policy_gradient(x.logprobs, x.advantages) * weights

    return Loss(weighted, of_steps=_of_steps if form == "per_decision" else None)


def _of_steps(x: LossInputs) -> torch.Tensor:
    """``-A log p`` with each step's reward weighted by the ratios up to its end."""
    weights = losses.importance_weights(x.logprobs, x.old_logprobs, x.mask, "per_decision")
    return losses.policy_gradient(x.logprobs, losses.per_decision_returns(x.advantages, weights))
