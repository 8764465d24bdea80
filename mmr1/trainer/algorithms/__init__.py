"""Algorithms: an advantage and a loss, chosen independently of each other, with their terms.

``catalog/`` has the advantages and the losses, the other files what they are made of.
"""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms.algorithm import (
    Advantage,
    AdvantageInputs,
    Algorithm,
    Loss,
    LossInputs,
    per_completion,
)
from mmr1.trainer.algorithms.catalog import build_advantage, build_loss


def build_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm of ``algorithm.advantage`` and ``algorithm.loss``.

    Raises:
        ValueError: A custom one cannot be loaded, or is something else.
    """
    return Algorithm(build_advantage(config.advantage), build_loss(config.loss), config)


__all__ = [
    "Advantage",
    "AdvantageInputs",
    "Algorithm",
    "Loss",
    "LossInputs",
    "build_algorithm",
    "per_completion",
]
