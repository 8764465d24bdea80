"""Estimators of the KL divergence between policy and reference, and the coefficients of the terms.

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

import torch

from mmr1.config import AlgorithmConfig, DistillationAdvantage, PpoKlLoss
from mmr1.types import StepStats

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


def ppo_adapted_coefficient(coefficient: float, kl: float, target: float) -> float:
    """PPO's beta for the next step (arXiv 1707.06347, section 4): halved or doubled.

    Halved where the KL is below ``target / 1.5``, doubled where it is above ``1.5 target``.

    >>> [ppo_adapted_coefficient(1.0, kl, target=0.3) for kl in (0.1, 0.3, 0.5)]
    [0.5, 1.0, 2.0]
    """
    if kl < target / 1.5:
        return coefficient / 2
    return coefficient * 2 if kl > target * 1.5 else coefficient


def adapted_coefficient(coefficient: float, kl: float, target: float, rate: float) -> float:
    """The KL coefficient for the next step (arXiv 1909.08593, section 2.2).

    ``beta * (1 + rate * clip(kl / target - 1, -0.2, 0.2))``: larger when the KL is too large.

    >>> round(adapted_coefficient(0.1, kl=0.05, target=0.01, rate=0.1), 6)
    0.102
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + rate * error)


ADAPTATION_RATE = 0.1
"""How fast the coefficients of the KL (arXiv 1909.08593) and of the entropy adapt."""


class Coefficients:
    """The adaptive coefficients, held by the loop's process and passed to each update."""

    def __init__(self, config: AlgorithmConfig) -> None:
        loss, kl, entropy = config.loss, config.kl, config.entropy
        self._ppo_kl_target = loss.target if isinstance(loss, PpoKlLoss) else None
        self._kl_target = None if kl is None else kl.target
        self._entropy_target = None if entropy is None else entropy.target
        self._logs_ppo_kl = isinstance(loss, PpoKlLoss)
        self.ppo_kl = loss.coef if isinstance(loss, PpoKlLoss) else 0.0
        self.kl = _kl_coef(config)
        self.entropy = 0.0 if entropy is None else entropy.coef

    def adapt(self, stats: StepStats) -> None:
        """Adapt each coefficient that has a target to the step's measured KL or entropy.

        Adds to ``stats`` the coefficients that the step used. A step that did not update the
        policy has no measurement and changes nothing.
        """
        stats |= {"kl_coef": self.kl, "entropy_coef": self.entropy}
        if self._logs_ppo_kl:
            stats["ppo_kl_coef"] = self.ppo_kl
        if self._ppo_kl_target is not None and "ppo_kl_last" in stats:
            self.ppo_kl = ppo_adapted_coefficient(
                self.ppo_kl, stats["ppo_kl_last"], self._ppo_kl_target
            )
        if self._kl_target is not None and "kl" in stats:
            self.kl = adapted_coefficient(self.kl, stats["kl"], self._kl_target, ADAPTATION_RATE)
        if self._entropy_target is not None and "entropy" in stats:
            self.entropy = adapted_entropy_coefficient(
                self.entropy, stats["entropy"], self._entropy_target, ADAPTATION_RATE
            )

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy, "ppo_kl": self.ppo_kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.kl, self.entropy = state["kl"], state["entropy"]
        self.ppo_kl = state["ppo_kl"]


def _kl_coef(config: AlgorithmConfig) -> float:
    """The coefficient of the KL to the reference, or of what the teacher says."""
    if isinstance(config.advantage, DistillationAdvantage):
        return config.advantage.coef
    return 0.0 if config.kl is None else config.kl.coef


def adapted_entropy_coefficient(
    coefficient: float, entropy: float, target: float, rate: float
) -> float:
    """The entropy coefficient for the next step: larger while the entropy is below the target.

    The temperature update of soft actor-critic (arXiv 1812.05905, equation 18) for the mean
    entropy per token, in nats: a gradient step on the logarithm, so that it stays positive.

    >>> adapted_entropy_coefficient(0.01, entropy=0.5, target=0.5, rate=0.1)
    0.01
    >>> adapted_entropy_coefficient(0.01, entropy=0.1, target=0.5, rate=0.1) > 0.01
    True
    """
    return coefficient * math.exp(rate * (target - entropy))
