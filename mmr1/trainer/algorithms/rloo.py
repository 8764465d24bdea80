"""RLOO (arXiv 2402.14740): the mean of the other completions as baseline.

The paper's estimator weighs the log-probability of a whole completion; with one update per rollout
that is the plain policy gradient. With several, ``algorithm.importance_sampling`` keeps the update
near the policy that sampled: PPO's clipped ratio by default.
"""

from __future__ import annotations

from functools import partial

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import (
    needs_signal,
    per_completion,
    policy_gradient,
)


def build(config: AlgorithmConfig) -> Algorithm:
    return Algorithm(
        advantages=per_completion(advantages.rloo),
        token_loss=partial(policy_gradient, config=config),
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
    )
