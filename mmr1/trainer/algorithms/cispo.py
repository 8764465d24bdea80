"""CISPO (arXiv 2506.13585): the importance weight is clipped, so that no token loses its gradient.

The paper leaves the lower side open (``clip_ratio_low`` 1) and tunes the upper one.
"""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages, losses
from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs
from mmr1.trainer.algorithms.terms import needs_signal, per_completion, regularised


def build(config: AlgorithmConfig) -> Algorithm:
    def token_loss(x: LossInputs) -> torch.Tensor:
        loss = losses.cispo(
            x.logprobs, x.old_logprobs, x.advantages, config.clip_ratio_low, config.clip_ratio_high
        )
        return regularised(loss, x, config)

    return Algorithm(
        advantages=per_completion(advantages.grpo),
        token_loss=token_loss,
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
    )
