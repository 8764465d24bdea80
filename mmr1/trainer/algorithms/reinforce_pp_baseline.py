"""REINFORCE++-baseline (arXiv 2501.03262): group mean as baseline, the batch's deviation as scale.

The KL term is in the loss, with the estimator k2.
"""

from __future__ import annotations

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm
from mmr1.trainer.algorithms.terms import clipped_algorithm, penalised


def build(config: AlgorithmConfig) -> Algorithm:
    return clipped_algorithm(_advantages, config)


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    return advantages.reinforce_pp_baseline(penalised(x), x.valid, x.mask)
