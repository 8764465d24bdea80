"""Tokens that a loss treats in another way than the rest, by their covariance or their entropy.

Pure functions of ``[B, R]`` tensors and a mask of the tokens that count. They compare the tokens of
a mini-batch with each other, so the loop's process calls them, which has all of them. They look at
the policy from before the rollout's first update. With one update per rollout that is the policy
itself.
"""

from __future__ import annotations

import math

import torch


def covariances(
    logprobs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Each token's share in the covariance of log-prob and advantage: ``[B, R]``, -inf if masked.

    ``(log p - mean log p) (A - mean A)``, the means over the N tokens that count (arXiv 2505.22617,
    section 4.2). Where it is large, an update lowers the entropy most.
    """
    count = mask.sum().clamp(min=1)
    centred = [x - torch.where(mask, x, 0.0).sum() / count for x in (logprobs, advantages)]
    return torch.where(mask, centred[0] * centred[1], -torch.inf)


def clip_cov(
    covariance: torch.Tensor, ratio: float, low: float, high: float, seed: int
) -> torch.Tensor:
    """Clip-Cov's tokens (arXiv 2505.22617): some of those within ``(low, high)``, ``[B, R]`` bool.

    ``floor(ratio * N)`` of them, drawn at random, at least one as in the authors' code.
    """
    within = ((covariance > low) & (covariance < high)).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(within), generator=generator)
    return _at(within[order[: _share(covariance, ratio)]], covariance)


def kl_cov(covariance: torch.Tensor, ratio: float) -> torch.Tensor:
    """KL-Cov's tokens (arXiv 2505.22617): those of the highest covariance, ``[B, R]`` bool.

    ``floor(ratio * N)`` of them, at least one as in the authors' code.
    """
    count = min(_share(covariance, ratio), int(covariance.isfinite().sum()))
    return _at(covariance.flatten().topk(count).indices, covariance)


def high_entropy(entropy: torch.Tensor, mask: torch.Tensor, quantile: float) -> torch.Tensor:
    """The share ``quantile`` of the tokens with the highest entropy (arXiv 2506.01939).

    ``[B, R]`` bool. The threshold is TRL's: the linear quantile of the entropies; tokens at it are
    in.
    """
    counted = entropy[mask]
    if len(counted) == 0:
        return mask
    place = math.ceil(round((1 - quantile) * (len(counted) - 1), 6))
    return mask & (entropy >= counted.kthvalue(place + 1).values)


def _share(covariance: torch.Tensor, ratio: float) -> int:
    return max(1, int(ratio * int(covariance.isfinite().sum())))


def _at(places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``[B, R]`` bool: True at these places of the flattened tensor."""
    chosen = torch.zeros(like.numel(), dtype=torch.bool)
    chosen[places] = True
    return chosen.view(like.shape)
