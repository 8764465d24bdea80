"""Estimators of the KL divergence between policy and reference.

The sampled estimators are pure functions of log-probs ``[...]`` of the same tokens, drawn from the
policy, under both; see J. Schulman, "Approximating KL Divergence" (2020). With
``d = ref - log p`` and ``r = exp(d)``, the policy's tokens give
``E[-d] = KL(policy || reference)``, ``E[r d] = KL(reference || policy)`` and ``E[r] = 1``.

The estimators with ``r`` take ``d`` within ``+-LOG_RATIO_BOUND`` and are themselves within
``+-BOUND``, as in verl and EasyR1: one token far from the reference would else outweigh the batch,
or overflow. Beyond a bound there is no gradient; :func:`bounded` tells where that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mmr1.lazy import torch

LOG_RATIO_BOUND = 20.0
BOUND = 10.0


def k1(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``-d``: unbiased, often negative, of high variance. InstructGPT's penalty in the reward.

    In a loss its gradient is 0 in expectation; use k2 or k3 there.
    """
    return logprobs - ref_logprobs


def k2(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``d^2 / 2``: biased, never negative, of low variance; its gradient is that of the KL."""
    return (ref_logprobs - logprobs).square() / 2


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``exp(d) - d - 1``: unbiased, never negative, of low variance; GRPO's choice."""
    d = (ref_logprobs - logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (d.exp() - d - 1).clamp(max=BOUND)


def absolute(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``|d|``: not an estimate of the KL, but a bound on how far single tokens move."""
    return (ref_logprobs - logprobs).abs()


def k1_forward(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``r d``: k1 for the other direction, KL(reference || policy)."""
    d = (ref_logprobs - logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (d.exp() * d).clamp(max=BOUND)


def k3_forward(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``r d - (r - 1)``: k3 for KL(reference || policy); unbiased, never negative."""
    d = (ref_logprobs - logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (d.exp() * d - (d.exp() - 1)).clamp(max=BOUND)


def bounded(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: str) -> torch.Tensor:
    """True where a bound holds the estimator back, and its gradient is 0: ``[...]`` bool."""
    if estimator not in ("k3", "k1_forward", "k3_forward"):
        return torch.zeros_like(logprobs, dtype=torch.bool)
    outside = (ref_logprobs - logprobs).abs() > LOG_RATIO_BOUND
    return outside | (ESTIMATORS[estimator](logprobs, ref_logprobs) >= BOUND)


ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "absolute": absolute,
    "k1_forward": k1_forward,
    "k3_forward": k3_forward,
}


def full(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Exact ``KL(p || q)`` over the vocabulary: ``[..., V]`` log-probs to ``[...]``.

    Swap the arguments for the other direction. Tokens that p rules out count 0.
    """
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, beta: float) -> torch.Tensor:
    """GKD's divergence of a policy p from its reference q: ``[..., V]`` log-probs to ``[...]``.

    1: ``KL(p || q)``; 0: ``KL(q || p)``; between them the generalized Jensen-Shannon divergence
    ``beta KL(q || m) + (1 - beta) KL(p || m)`` with ``m = beta q + (1 - beta) p``
    (arXiv 2306.13649, section 3.1, with the reference as the teacher).
    """
    if beta == 1:
        return full(log_p, log_q)
    if beta == 0:
        return full(log_q, log_p)
    log_m = mixture(log_p, log_q, beta)
    return beta * full(log_q, log_m) + (1 - beta) * full(log_p, log_m)


def divergence_gradient(log_p: torch.Tensor, log_q: torch.Tensor, beta: float) -> torch.Tensor:
    """The gradient of :func:`divergence` by the logits of p: ``[..., V]``.

    ``q`` and ``m`` are as there. 1: ``p (log p - log q - KL(p || q))``. 0: ``p - q``. Between them
    ``(1 - beta) p (log p - log m - KL(p || m))``: what p adds to m and what m takes from q cancel.
    """
    if beta == 0:
        return log_p.exp() - log_q.exp()
    log_m = log_q if beta == 1 else mixture(log_p, log_q, beta)
    share = 1.0 if beta == 1 else 1 - beta
    return share * log_p.exp() * (log_p - log_m - full(log_p, log_m)[..., None])


def mixture(log_p: torch.Tensor, log_q: torch.Tensor, beta: float) -> torch.Tensor:
    """``log (beta q + (1 - beta) p)``."""
    return torch.logaddexp(log_q + math.log(beta), log_p + math.log1p(-beta))
