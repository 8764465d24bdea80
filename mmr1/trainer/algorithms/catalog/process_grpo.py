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
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm, LossInputs


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms.terms import clipped_algorithm, composed_algorithm

    if config.importance_sampling == "per_decision":
        algorithm = composed_algorithm(_advantages, _per_decision, config)
    else:
        algorithm = clipped_algorithm(_advantages, config)
    return replace(algorithm, step_supervision=True)


def _per_decision(x: LossInputs) -> torch.Tensor:
    """Each step's reward weighs by the ratios up to its end."""
    from mmr1.trainer.algorithms import losses

    weights = losses.importance_weights(x.logprobs, x.old_logprobs, x.mask, "per_decision")
    return losses.policy_gradient(x.logprobs, losses.per_decision_returns(x.advantages, weights))


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
        reads=(
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_dual",
            "importance_sampling",
            "step_rewards",
        ),
        requires=(
            Requirement(
                lambda config: config.step_rewards is not None,
                "process_grpo learns from the rewards of steps and step_rewards is not set; name a "
                "file.py:function in algorithm.step_rewards, or use name=grpo",
            ),
            Requirement(
                lambda config: config.importance_sampling in ("clip", "per_decision"),
                "process_grpo has PPO's clip or importance_sampling=per_decision, by which each "
                "step's reward is weighted; set one of them",
            ),
            Requirement(
                lambda config: (
                    config.importance_sampling == "clip" or config.top_entropy_quantile == 1
                ),
                "top_entropy_quantile leaves tokens out, and importance_sampling=per_decision "
                "needs the step rewards at all of them; leave one of them out",
            ),
            Requirement(
                lambda config: config.reward_clip_range is None and not config.normalize_rewards,
                "process_grpo learns from the rewards of steps; reward_clip_range and "
                "normalize_rewards change those of completions, which are only logged. Leave them "
                "out",
            ),
            Requirement(
                lambda config: config.use_kl_loss,
                "process_grpo learns from the rewards of steps, which hold no KL penalty; set "
                "use_kl_loss=true",
            ),
        ),
    ),
)
