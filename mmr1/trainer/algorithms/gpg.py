"""GPG (arXiv 2504.02546): the plain policy gradient, scaled up for the groups without a signal."""

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
        advantages=per_completion(advantages.gpg),
        token_loss=partial(policy_gradient, config=config),
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
    )
