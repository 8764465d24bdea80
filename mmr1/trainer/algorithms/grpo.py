"""GRPO (arXiv 2402.03300): group-normalised rewards, PPO's clipped ratio, k3 to a reference."""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer import advantages, losses
from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs
from mmr1.trainer.algorithms.terms import kl_metrics, regularised


def build(config: AlgorithmConfig) -> Algorithm:
    clip = (config.clip_low, config.clip_high)

    def token_loss(x: LossInputs) -> torch.Tensor:
        surrogate = losses.ppo_clip(x.logprobs, x.old_logprobs, x.advantages, *clip)
        return regularised(surrogate, x, config)

    def metrics(x: LossInputs) -> dict[str, torch.Tensor]:
        clipped = losses.clip_fraction_mask(x.logprobs, x.old_logprobs, x.advantages, *clip)
        return {"clip_fraction": clipped.float(), **kl_metrics(x)}

    return Algorithm(
        advantages=advantages.grpo,
        token_loss=token_loss,
        aggregation=config.aggregation or "sequence",
        metrics=metrics,
        needs_signal=config.kl_coef == 0 and config.entropy_coef == 0,
    )
