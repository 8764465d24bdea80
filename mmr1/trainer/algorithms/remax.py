"""ReMax (arXiv 2310.10505): the reward of the greedy completion as baseline."""

from __future__ import annotations

from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm
from mmr1.trainer.algorithms.terms import needs_signal, penalised, policy_gradient


def build(config: AlgorithmConfig) -> Algorithm:
    return Algorithm(
        advantages=_advantages,
        token_loss=partial(policy_gradient, config=config),
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
        greedy_baseline=True,
    )


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    assert x.greedy is not None, "the loop rolls the greedy completion out"
    assert x.greedy_valid is not None
    found = advantages.remax(penalised(x), x.valid, x.greedy, x.greedy_valid).flatten()
    return found[:, None] * x.mask
