"""Coefficients of the KL and the entropy, which adapt from step to step."""

from __future__ import annotations

import math

from mmr1.algorithms.advantages.distillation import DistillationAdvantage
from mmr1.config import AlgorithmConfig
from mmr1.types import StepStats


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
        kl, entropy = config.kl, config.entropy
        self._kl_target = None if kl is None else kl.target
        self._entropy_target = None if entropy is None else entropy.target
        self.kl = _kl_coef(config)
        self.entropy = 0.0 if entropy is None else entropy.coef

    def adapt(self, stats: StepStats) -> None:
        """Adapt each coefficient that has a target to the step's measured KL or entropy.

        Adds to ``stats`` the coefficients that the step used. A step that did not update the
        policy has no measurement and changes nothing.
        """
        stats |= {"kl_coef": self.kl, "entropy_coef": self.entropy}
        if self._kl_target is not None and "kl" in stats:
            self.kl = adapted_coefficient(self.kl, stats["kl"], self._kl_target, ADAPTATION_RATE)
        if self._entropy_target is not None and "entropy" in stats:
            self.entropy = adapted_entropy_coefficient(
                self.entropy, stats["entropy"], self._entropy_target, ADAPTATION_RATE
            )

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.kl, self.entropy = state["kl"], state["entropy"]


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
