"""Terms that several algorithms add to their loss."""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.kl import k3


def regularised(
    token_loss: torch.Tensor, inputs: LossInputs, config: AlgorithmConfig
) -> torch.Tensor:
    """Add ``kl_coef * k3`` and subtract ``entropy_coef * entropy``: ``[B, R]``."""
    if config.kl_coef > 0:
        assert inputs.ref_logprobs is not None, "a KL term needs reference log-probs"
        token_loss = token_loss + config.kl_coef * k3(inputs.logprobs, inputs.ref_logprobs)
    if config.entropy_coef > 0:
        token_loss = token_loss - config.entropy_coef * inputs.entropy
    return token_loss


def kl_metrics(inputs: LossInputs) -> dict[str, torch.Tensor]:
    """The k3 estimate of KL(policy || reference) per token; 0 when there is no reference."""
    if inputs.ref_logprobs is None:
        return {"kl": torch.zeros_like(inputs.logprobs)}
    return {"kl": k3(inputs.logprobs, inputs.ref_logprobs)}
