"""Algorithms: ``catalog/`` has one file for each, the other files what they are composed of.

Importing this package imports no torch, because the configuration reads the catalog.
"""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.config.algorithm_spec import algorithm_names
from mmr1.trainer.algorithms.algorithm import Algorithm


def build_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that ``algorithm.name`` names: built in, an entry point or ``file.py:build``.

    Raises:
        ValueError: The name is unknown, or what it names does not return an ``Algorithm``.
    """
    spec = config.spec
    build = algorithm_names().load(config.name) if spec is None else spec.build
    algorithm = build(config)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm.name '{config.name}' returned {type(algorithm).__name__}; "
            "its build(config) must return an mmr1.trainer.algorithms.Algorithm"
        )
    return algorithm


__all__ = ["Algorithm", "build_algorithm"]
