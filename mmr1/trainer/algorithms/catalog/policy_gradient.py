"""Plain policy gradients with the rewards of the group as baseline: RLOO and GPG.

RLOO's paper weights the log-probability of a whole completion. With one update per rollout that is
the plain policy gradient. With several, ``algorithm.importance_sampling`` corrects for the policy
that sampled; its default is PPO's clipped ratio.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm

READS = (
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_dual",
    "importance_sampling",
    "importance_sampling_level",
)


def build(config: AlgorithmConfig, advantage: Literal["rloo", "gpg"]) -> Algorithm:
    """The function of ``advantages.py`` named ``advantage``, under the policy-gradient loss."""
    from mmr1.trainer.algorithms import advantages
    from mmr1.trainer.algorithms.terms import per_completion, policy_gradient_algorithm

    of_group = {"rloo": advantages.rloo, "gpg": advantages.gpg}[advantage]
    return policy_gradient_algorithm(per_completion(of_group), config)


SPECS = (
    AlgorithmSpec(
        name="rloo",
        advantage="r − mean of the other n − 1",
        loss="−A log p, mean over tokens",
        papers=("2402.14740",),
        use="unbiased, no division by the deviation",
        build=partial(build, advantage="rloo"),
        defaults={"loss_agg_mode": "token-mean"},
        reads=READS,
    ),
    AlgorithmSpec(
        name="gpg",
        advantage="α (r − group mean), α = G / groups with a signal",
        loss="−A log p, mean over tokens",
        papers=("2504.02546",),
        use="the plain policy gradient, scaled up for groups without a signal",
        build=partial(build, advantage="gpg"),
        defaults={"loss_agg_mode": "token-mean"},
        reads=READS,
    ),
)
