"""DAPO (arXiv 2503.14476): GRPO's advantage, clip-higher, the mean over all tokens.

Its dynamic sampling is the loop's (``algorithm.dynamic_sampling``), its overlong shaping the reward
part ``overlong``.
"""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm, per_completion


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(per_completion(advantages.grpo), config)
