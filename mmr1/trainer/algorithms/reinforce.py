"""REINFORCE (Williams 1992) with a moving average of the rewards as baseline."""

from __future__ import annotations

from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import (
    needs_signal,
    per_completion,
    policy_gradient,
)


def build(config: AlgorithmConfig) -> Algorithm:
    state: dict[str, float] = {}

    def advantage(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Against the average of the batches before; the first batch has only its own mean."""
        after = advantages.moving_average(
            state.get("baseline"), rewards, valid, config.baseline_momentum
        )
        if after is None:
            return torch.zeros_like(rewards)
        found = advantages.reinforce(rewards, valid, state.get("baseline", after))
        state["baseline"] = after
        return found

    return Algorithm(
        advantages=per_completion(advantage),
        token_loss=partial(policy_gradient, config=config),
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
        state=state,
    )
