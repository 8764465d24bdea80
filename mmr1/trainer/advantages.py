"""Advantages: how much better a completion was than the baseline of its group.

Pure functions of rewards ``[G, n]`` (G prompts, group size n) and a mask ``valid`` of the same
shape. A completion without a valid reward is outside the baseline and gets advantage 0.
"""

from __future__ import annotations

import torch


def group_mean(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Mean reward of each group's valid completions: ``[G, 1]``, 0 for a group without any."""
    total = torch.where(valid, rewards, 0.0).sum(-1, keepdim=True)
    return total / valid.sum(-1, keepdim=True).clamp(min=1)


def grpo(rewards: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Group-normalised advantage of GRPO (arXiv 2402.03300, section 4.1.2): ``[G, n]``.

    ``A_i = (r_i - mean(r)) / (std(r) + eps)`` with the sample standard deviation, as in the
    released implementations. A group whose rewards are all equal gets exactly 0.
    """
    centred = torch.where(valid, rewards - group_mean(rewards, valid), 0.0)
    count = valid.sum(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    return _zero_if_equal(centred / (variance.sqrt() + eps), rewards, valid)


def rloo(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Leave-one-out advantage of RLOO (arXiv 2402.14740, equation 8): ``[G, n]``.

    ``A_i = r_i - mean(r_j, j != i)``, which is ``n / (n - 1) * (r_i - mean(r))``. A completion
    that is alone in its group has no baseline and gets 0.
    """
    count = valid.sum(-1, keepdim=True)
    centred = torch.where(valid, rewards - group_mean(rewards, valid), 0.0)
    scaled = centred * count / (count - 1).clamp(min=1)
    return _zero_if_equal(torch.where(count > 1, scaled, 0.0), rewards, valid)


def _zero_if_equal(
    advantages: torch.Tensor, rewards: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """Equal rewards carry no signal; rounding of their mean must not turn into one."""
    high = torch.where(valid, rewards, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(valid, rewards, torch.inf).amin(-1, keepdim=True)
    return torch.where(high > low, advantages, 0.0)
