"""Policy losses per token, and the weights that add them up.

Pure functions of tensors ``[B, R]`` (B sequences, R the longest completion). A loss is
``(weights * token_loss).sum()``: the weights hold the global denominators, so cutting a batch into
micro-batches or ranks does not change its gradient.
"""

from __future__ import annotations

from typing import Literal

import torch

Aggregation = Literal["sequence", "token", "constant"]


def ppo_clip(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """Clipped surrogate of PPO (arXiv 1707.06347, equation 7), negated: ``[B, R]``.

    ``-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)`` with ``rho = exp(logp - old)``.
    ``clip_high > clip_low`` is DAPO's clip-higher (arXiv 2503.14476).
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def policy_gradient(logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """REINFORCE (Williams 1992): ``-A log p``, ``[B, R]``; on-policy."""
    return -advantages * logprobs


def clip_fraction_mask(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """True where :func:`ppo_clip` has cut the gradient off: ``[B, R]`` bool."""
    ratio = (logprobs - old_logprobs).exp()
    return ((ratio > 1 + clip_high) & (advantages > 0)) | (
        (ratio < 1 - clip_low) & (advantages < 0)
    )


def token_weights(
    mask: torch.Tensor, aggregation: Aggregation, max_tokens: int | None = None
) -> torch.Tensor:
    """Weight of each token's loss, ``[B, R]`` float32, 0 where ``mask`` is False.

    - ``sequence``: the mean of each sequence, then the mean of the sequences (GRPO).
    - ``token``: the mean over all tokens (DAPO).
    - ``constant``: the sum divided by ``B * max_tokens`` (Dr.GRPO, arXiv 2503.20783).

    A sequence without any unmasked token does not count.
    """
    weights = mask.float()
    lengths = weights.sum(-1, keepdim=True)
    sequences = (lengths > 0).sum().clamp(min=1)
    if aggregation == "sequence":
        return weights / lengths.clamp(min=1) / sequences
    if aggregation == "token":
        return weights / lengths.sum().clamp(min=1)
    assert max_tokens is not None, "the constant denominator needs the completion limit"
    return weights / (sequences * max_tokens)
