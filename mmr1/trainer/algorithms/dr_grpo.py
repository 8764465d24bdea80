"""Dr.GRPO (arXiv 2503.20783): no deviation in the advantage, no length in the denominator."""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm, per_completion


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(per_completion(advantages.dr_grpo), config)
