"""GRPO and the algorithms that differ from it in the advantage or in values of the configuration.

All use PPO's clipped loss. What differs is in ``SPECS``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm

READS = (
    "adv_estimator",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_dual",
    "importance_sampling_level",
)


def build(
    config: AlgorithmConfig,
    advantage: Literal["grpo", "dr_grpo"] = "grpo",
    shuffled_frames: bool = False,
) -> Algorithm:
    """The function of ``advantages.py`` named ``advantage``, under PPO's clipped loss."""
    from mmr1.trainer.algorithms.terms import clipped_algorithm, group_advantage

    algorithm = clipped_algorithm(group_advantage(advantage, config), config)
    return replace(algorithm, shuffled_frames=shuffled_frames)


SPECS = (
    # The ratio is each token's, as in DeepSeekMath. The R1 paper (2501.12948) has the ratio of the
    # whole completion: importance_sampling_level=sequence_product.
    AlgorithmSpec(
        name="grpo",
        advantage="(r − mean) / std of the group",
        loss="clipped, mean over each completion",
        papers=("2402.03300",),
        use="the usual first choice",
        build=build,
        reads=READS,
    ),
    # Section 3.2: no division by the deviation, none by the completion's length.
    AlgorithmSpec(
        name="dr_grpo",
        advantage="r − group mean",
        loss="clipped, sum / (B · max_tokens)",
        papers=("2503.20783",),
        use="no bias by length or difficulty",
        build=partial(build, advantage="dr_grpo"),
        defaults={"loss_agg_mode": "seq-mean-token-sum-norm"},
        reads=READS,
    ),
    # Clip-higher (section 3.1, values in 4.1), dynamic sampling (3.2), the mean over all tokens
    # (3.3). Its overlong shaping (3.4) is the reward function `overlong`.
    AlgorithmSpec(
        name="dapo",
        advantage="as GRPO",
        loss="clipped at 0.8 and 1.28, mean over tokens",
        papers=("2503.14476",),
        use="long reasoning; dynamic sampling",
        build=build,
        defaults={
            "loss_agg_mode": "token-mean",
            "clip_ratio_high": 0.28,
            "dynamic_sampling": True,
        },
        reads=READS,
    ),
    # The ratio is the geometric mean of a completion's token ratios; clip values of section 5.1.
    AlgorithmSpec(
        name="gspo",
        advantage="as GRPO",
        loss="clipped ratio of the sequence, mean over completions",
        papers=("2507.18071",),
        use="mixture-of-experts models, several updates per rollout",
        build=build,
        defaults={
            "importance_sampling_level": "sequence",
            "clip_ratio_low": 3e-4,
            "clip_ratio_high": 4e-4,
        },
        reads=READS,
    ),
    # Section 3.1: half a group more is sampled with shuffled frames. Where the right order did
    # better, the reward function gives correct completions a bonus.
    AlgorithmSpec(
        name="t_grpo",
        advantage="as GRPO",
        loss="as GRPO",
        papers=("2503.21776",),
        use="videos whose order of frames matters; needs the reward function `temporal_contrast`",
        build=partial(build, shuffled_frames=True),
        reads=READS,
        reward_function="temporal_contrast",
    ),
)
