"""SAPO (arXiv 2511.20347): a smooth gate around the ratio of 1 in the place of the clip."""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages, losses
from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs
from mmr1.trainer.algorithms.terms import needs_signal, per_completion, regularised


def build(config: AlgorithmConfig) -> Algorithm:
    def token_loss(x: LossInputs) -> torch.Tensor:
        loss = losses.sapo(x.logprobs, x.old_logprobs, x.advantages, *config.sapo_tau)
        return regularised(loss, x, config)

    return Algorithm(
        advantages=per_completion(advantages.grpo),
        token_loss=token_loss,
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
    )
