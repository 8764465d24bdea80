"""The plain policy gradient (Williams 1992), weighted where several updates share a rollout."""

from __future__ import annotations

from typing import Any, Literal

from mmr1.algorithms import SelectiveLoss, loss, ratios
from mmr1.algorithms.interface import Loss, LossInputs
from mmr1.lazy import torch
from mmr1.section import Need


@loss(
    "reinforce",
    paper="Williams 1992",
    base=SelectiveLoss,
    needs=(
        Need(
            ("algorithm.loss.importance", "algorithm.loss.top_entropy_quantile"),
            lambda c: _weighs_steps(c) and c.algorithm.loss.token_share < 1,
            "each step's reward is weighted by all of its tokens; leave one of them out",
            (
                "algorithm.advantage={type: process, step_rewards: a.py:f}",
                "algorithm.loss.importance=per_decision",
                "algorithm.loss.top_entropy_quantile=0.5",
            ),
        ),
        Need(
            ("algorithm.loss.importance",),
            lambda c: c.algorithm.loss.importance != "none" and c.updates < 2,
            "with one update per rollout every weight is 1; set algorithm.ppo_mini_batch_size, or "
            "ppo_epochs above 1",
            ("algorithm.loss.importance=token",),
            warns=True,
        ),
    ),
    example={"log_ratios": [0.5, -0.5], "advantage": 1.0, "loss": [-0.5, 0.5]},
)
def reinforce(importance: Literal["none", "token", "per_decision", "sequence"] = "none") -> Loss:
    """The plain policy gradient, −A log p.

    Args:
        importance: Importance weights, for several updates per rollout.
    """
    if importance == "none":
        return Loss(lambda x: ratios.policy_gradient(x.logprobs, x.advantages))

    def weighted(x: LossInputs) -> torch.Tensor:
        weights = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, importance)
        return ratios.policy_gradient(x.logprobs, x.advantages) * weights

    return Loss(weighted, of_steps=_of_steps if importance == "per_decision" else None)


def _weighs_steps(c: Any) -> bool:
    return bool(c.algorithm.loss.importance == "per_decision" and c.algorithm.advantage.per_step)


def _of_steps(x: LossInputs) -> torch.Tensor:
    """``-A log p`` with each step's reward weighted by the ratios up to its end."""
    weights = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, "per_decision")
    return ratios.policy_gradient(x.logprobs, ratios.per_decision_returns(x.advantages, weights))
