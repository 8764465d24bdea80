"""The loss of reward models."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def bradley_terry(rewards: torch.Tensor) -> torch.Tensor:
    """Pairwise loss of a ranking (arXiv 2203.02155, equation 1): a number.

    ``-mean of log sigmoid(r_i - r_j)`` over the K (K - 1) / 2 pairs in which i ranks above j. For
    K = 2 it is the Bradley-Terry loss. The mean gives every ranking the same weight.

    Args:
        rewards: ``[K]``, the best first.
    """
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1, device=rewards.device)
    return -logsigmoid(rewards[better] - rewards[worse]).mean()
