"""DAPO (arXiv 2503.14476): GRPO's advantage, clip-higher, the mean over all tokens.

Its dynamic sampling is the loop's (``algorithm.dynamic_sampling``), its overlong shaping the reward
part ``overlong``.
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
