"""GRPO (arXiv 2402.03300): group-normalised rewards, PPO's clipped ratio, k3 to a reference.

The ratio is each token's, as in DeepSeekMath; ``ratio: response`` takes that of the whole response,
as the R1 paper writes it (arXiv 2501.12948).
"""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm, per_completion


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(per_completion(advantages.grpo), config)
