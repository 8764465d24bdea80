"""GRPO with process supervision (arXiv 2402.03300, section 4.1.3): each step has a reward.

The function that ``algorithm.step_rewards`` names gives the rewards of the steps. The completion's
own reward is only logged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec, Requirement

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms.terms import clipped_algorithm

    return replace(clipped_algorithm(_advantages, config), step_supervision=True)


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    from mmr1.trainer.algorithms.advantages import process_supervision

    assert x.step_rewards is not None, "process supervision needs step rewards"
    assert x.step_ends is not None
    shape = (*x.rewards.shape, -1)  # [G, n, R]
    ends = (x.step_ends & x.mask).view(shape)
    return process_supervision(x.step_rewards.view(shape), ends).flatten(0, 1) * x.mask


SPECS = (
    AlgorithmSpec(
        name="process_grpo",
        advantage="sum of the normalised step rewards from t on",
        loss="clipped, mean over each completion",
        papers=("2402.03300",),
        use="steps can be judged; see below",
        build=build,
        reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_dual", "step_rewards"),
        requires=(
            Requirement(
                lambda config: config.step_rewards is not None,
                "process_grpo learns from the rewards of steps and step_rewards is not set; name a "
                "file.py:function in algorithm.step_rewards, or use name=grpo",
            ),
            Requirement(
                lambda config: config.use_kl_loss,
                "process_grpo learns from the rewards of steps, which hold no KL penalty; set "
                "use_kl_loss=true",
            ),
        ),
    ),
)
