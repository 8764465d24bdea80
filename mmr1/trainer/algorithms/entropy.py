"""Adapts the coefficient of the entropy bonus to a target entropy."""

from __future__ import annotations

import math


def adapted_coefficient(coefficient: float, entropy: float, target: float, rate: float) -> float:
    """The entropy coefficient for the next step: larger while the entropy is below the target.

    The temperature update of soft actor-critic (arXiv 1812.05905, equation 18) for the mean
    entropy per token, in nats: a gradient step on the logarithm, so that it stays positive.

    >>> adapted_coefficient(0.01, entropy=0.5, target=0.5, rate=0.1)
    0.01
    >>> adapted_coefficient(0.01, entropy=0.1, target=0.5, rate=0.1) > 0.01
    True
    """
    return coefficient * math.exp(rate * (target - entropy))
