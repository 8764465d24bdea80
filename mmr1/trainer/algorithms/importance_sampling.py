"""What makes up for an engine that does not sample from quite the policy that learns.

Its kernels round otherwise, and with rollouts ahead of the update its weights are older. Each
token's loss is weighted by how much more probable the trainer holds it than the engine did,
truncated from above ("truncated importance sampling", Yao et al. 2025, *Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training*; the truncation is that of Ionides 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

Form = Literal["none", "token", "sequence"]
Correction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(logprobs, rollout_logprobs, mask) -> weights``, all ``[B, R]``."""


def unit_weights(
    logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The engine is taken to sample from the policy itself."""
    return torch.ones_like(logprobs)


def rollout_importance_weights(
    logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
    form: Form,
    cap: float,
    outlier: float | None = None,
) -> torch.Tensor:
    """Weights of the token losses, detached: ``[B, R]``.

    - ``token``: ``min(p / q, cap)`` of each token, p the trainer's probability, q the engine's.
    - ``sequence``: ``min(product of p / q over the completion, cap)``.

    Args:
        logprobs: ``[B, R]`` under the policy that the update starts from.
        rollout_logprobs: ``[B, R]`` under the engine that sampled.
        mask: ``[B, R]`` bool, the tokens that count.
        outlier: Tokens whose ratio lies outside ``[1 / outlier, outlier]`` weigh 0.
    """
    log_ratio = torch.where(mask, logprobs - rollout_logprobs, 0.0).detach()
    if form == "none":
        weights = torch.ones_like(log_ratio)
    elif form == "token":
        weights = log_ratio.exp().clamp(max=cap)
    else:
        weights = log_ratio.sum(-1, keepdim=True).exp().clamp(max=cap).expand(log_ratio.shape)
    if outlier is None:
        return weights
    return torch.where(log_ratio.abs() <= math.log(outlier), weights, 0.0)
