"""Truncated importance sampling: corrects for an engine that samples from another policy.

The engine's kernels round differently, and its weights are older when rollouts are asynchronous.
So each token's policy loss is multiplied by the trainer's probability of the token over the
engine's, truncated from above (Yao et al. 2025, *Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training*; the truncation is that of Ionides 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

Form = Literal["none", "token", "sequence"]
OutlierForm = Literal["token", "sequence", "geometric"]
Correction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(logprobs, rollout_logprobs, mask) -> weights``, all ``[B, R]``."""


def unit_weights(
    logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """1 for every token: the engine samples from the policy itself. ``[B, R]``."""
    return torch.ones_like(logprobs)


def rollout_importance_weights(
    logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
    form: Form,
    cap: float,
    outlier: float | None = None,
    outlier_form: OutlierForm = "token",
) -> torch.Tensor:
    """Weights of the token losses, detached: ``[B, R]``.

    - ``token``: ``min(p / q, cap)`` of each token, p the trainer's probability, q the engine's.
    - ``sequence``: ``min(product of p / q over the completion, cap)``.

    Args:
        logprobs: ``[B, R]`` under the policy that the update starts from.
        rollout_logprobs: ``[B, R]`` under the engine that sampled.
        mask: ``[B, R]`` bool, the tokens that count.
        outlier: Tokens whose ratio lies outside ``[1 / outlier, outlier]`` weigh 0.
        outlier_form: That ratio: the token's; ``sequence``: the product over the completion;
            ``geometric``: its geometric mean. The last two take out whole completions.
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
    judged = log_ratio
    if outlier_form != "token":
        judged = log_ratio.sum(-1, keepdim=True)
    if outlier_form == "geometric":
        judged = judged / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(judged.abs() <= math.log(outlier), weights, 0.0)
