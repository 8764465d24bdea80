"""ReMax (arXiv 2310.10505): the reward of the greedy completion as baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms.terms import policy_gradient_algorithm

    return replace(policy_gradient_algorithm(_advantages, config), greedy_baseline=True)


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    from mmr1.trainer.algorithms.advantages import remax
    from mmr1.trainer.algorithms.terms import penalised

    assert x.greedy is not None, "the loop samples the greedy completion"
    assert x.greedy_valid is not None
    return remax(penalised(x), x.valid, x.greedy, x.greedy_valid).flatten()[:, None] * x.mask


SPECS = (
    AlgorithmSpec(
        name="remax",
        advantage="r − reward of the greedy completion",
        loss="−A log p, mean over tokens",
        papers=("2310.10505",),
        use="a baseline for n = 1, at the cost of one more rollout",
        build=build,
        defaults={"loss_agg_mode": "token-mean"},
        reads=(
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_dual",
            "importance_sampling",
            "importance_sampling_level",
        ),
        compares_group=False,
    ),
)
