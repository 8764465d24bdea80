"""GSPO (arXiv 2507.18071): the geometric mean of a response's token ratios is clipped."""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm, per_completion


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(per_completion(advantages.grpo), config)
