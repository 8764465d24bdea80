"""Algorithms by name. Each is one file: an advantage and a loss, composed."""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.config.algorithm import ALGORITHMS
from mmr1.trainer.algorithms.algorithm import Algorithm


def build_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that ``algorithm.name`` names: built in, an entry point or ``file.py:build``.

    Raises:
        ValueError: The name is unknown.
    """
    algorithm = ALGORITHMS.load(config.name)(config)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm.name '{config.name}' returned {type(algorithm).__name__}; "
            "its build(config) must return an mmr1.trainer.algorithms.Algorithm"
        )
    return algorithm


__all__ = ["ALGORITHMS", "Algorithm", "build_algorithm"]
