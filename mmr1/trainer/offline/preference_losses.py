"""Losses on preferences: pure functions, one loss per pair or ranking."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def dpo(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, beta: float) -> torch.Tensor:
    """Direct preference optimisation (arXiv 2305.18290, equation 7): ``[P]``.

    ``-log sigmoid(beta (log p_w / ref_w - log p_l / ref_l))``.

    Args:
        logprobs: ``[P, 2]`` of whole completions under the policy, the chosen first.
        ref_logprobs: ``[P, 2]``, the same under the reference.
        beta: Strength of the implied KL term.
    """
    rewards = implicit_rewards(logprobs, ref_logprobs, beta)
    return -logsigmoid(rewards[:, 0] - rewards[:, 1])


def implicit_rewards(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor, beta: float
) -> torch.Tensor:
    """``beta log(p / ref)``, the shape of ``logprobs`` (arXiv 2305.18290, section 5)."""
    return beta * (logprobs - ref_logprobs)


def bradley_terry(rewards: torch.Tensor) -> torch.Tensor:
    """Pairwise loss of a ranking (arXiv 2203.02155, equation 1): a number.

    ``-mean of log sigmoid(r_i - r_j)`` over the K (K - 1) / 2 pairs in which i ranks above j. For
    K = 2 it is the Bradley-Terry loss. The mean gives every ranking the same weight.

    Args:
        rewards: ``[K]``, the best first.
    """
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1, device=rewards.device)
    return -logsigmoid(rewards[better] - rewards[worse]).mean()
