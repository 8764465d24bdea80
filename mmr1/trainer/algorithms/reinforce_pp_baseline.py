"""REINFORCE++-baseline (arXiv 2501.03262): group mean as baseline, the batch's deviation as scale.

The KL term is in the loss, with the estimator k2.
"""

from __future__ import annotations

from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm, Outcomes
from mmr1.trainer.algorithms.terms import clip_metrics, clipped_surrogate, needs_signal, penalised


def build(config: AlgorithmConfig) -> Algorithm:
    return Algorithm(
        advantages=_advantages,
        token_loss=partial(clipped_surrogate, config=config),
        aggregation=config.aggregation,
        metrics=partial(clip_metrics, config=config),
        needs_signal=needs_signal(config),
    )


def _advantages(x: Outcomes) -> torch.Tensor:
    return advantages.reinforce_pp_baseline(penalised(x), x.valid, x.mask)
