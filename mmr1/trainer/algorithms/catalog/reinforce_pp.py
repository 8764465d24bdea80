"""REINFORCE++ and REINFORCE++-baseline (arXiv 2501.03262): advantages normalised over the batch.

Both use PPO's clipped loss and no critic. They differ in the baseline and in where the KL is:
REINFORCE++ takes a KL penalty per token (estimator k1) off the reward, the other adds a KL term
(estimator k2) to the loss.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm

READS = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_dual")


def build(config: AlgorithmConfig, group_baseline: bool = False) -> Algorithm:
    from mmr1.trainer.algorithms.terms import clipped_algorithm

    if group_baseline:
        return clipped_algorithm(_with_baseline, config)
    return clipped_algorithm(partial(_without_baseline, gamma=config.gamma), config)


def _without_baseline(x: AdvantageInputs, gamma: float) -> torch.Tensor:
    from mmr1.trainer.algorithms.advantages import reinforce_pp

    return reinforce_pp(x.rewards.flatten(), x.kl_penalty, x.mask, gamma)


def _with_baseline(x: AdvantageInputs) -> torch.Tensor:
    from mmr1.trainer.algorithms.advantages import reinforce_pp_baseline
    from mmr1.trainer.algorithms.terms import penalised

    return reinforce_pp_baseline(penalised(x), x.valid, x.mask)


SPECS = (
    AlgorithmSpec(
        name="reinforce_pp",
        advantage="r − the KL penalties from t on, normalised over the batch",
        loss="clipped, mean over tokens",
        papers=("2501.03262",),
        use="no groups; prompts of similar difficulty",
        build=build,
        defaults={"loss_agg_mode": "token-mean", "use_kl_loss": False, "kl_estimator": "k1"},
        reads=(*READS, "gamma"),
        compares_group=False,
    ),
    AlgorithmSpec(
        name="reinforce_pp_baseline",
        advantage="r − group mean, normalised over the batch",
        loss="clipped, mean over tokens; KL by k2",
        papers=("2501.03262",),
        use="groups, without GRPO's division by each group's deviation",
        build=partial(build, group_baseline=True),
        defaults={"loss_agg_mode": "token-mean", "kl_estimator": "k2"},
        reads=READS,
    ),
)
