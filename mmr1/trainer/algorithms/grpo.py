"""GRPO (arXiv 2402.03300): group-normalised rewards, PPO's clipped ratio, k3 to a reference.

The ratio is each token's, as in DeepSeekMath; ``ratio: response`` takes that of the whole response,
as the R1 paper writes it (arXiv 2501.12948).
"""

from __future__ import annotations

from functools import partial

from mmr1.config import AlgorithmConfig
from mmr1.trainer import advantages
from mmr1.trainer.algorithms.algorithm import Algorithm
from mmr1.trainer.algorithms.terms import (
    clip_metrics,
    clipped_surrogate,
    needs_signal,
    per_completion,
)


def build(config: AlgorithmConfig) -> Algorithm:
    return Algorithm(
        advantages=per_completion(advantages.grpo),
        token_loss=partial(clipped_surrogate, config=config),
        aggregation=config.aggregation,
        metrics=partial(clip_metrics, config=config),
        needs_signal=needs_signal(config),
    )
