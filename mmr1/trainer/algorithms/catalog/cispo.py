"""CISPO (arXiv 2506.13585, section 3.1): clips the importance weight, not the update.

So no token loses its gradient. The paper does not bound the weight from below (``clip_ratio_low``
1) and gives no number for the upper bound; 4 is this project's choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm, LossInputs


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms import losses
    from mmr1.trainer.algorithms.terms import composed_algorithm, group_advantage

    def token_loss(x: LossInputs) -> torch.Tensor:
        clip = (config.clip_ratio_low, config.clip_ratio_high)
        return losses.cispo(x.logprobs, x.old_logprobs, x.advantages, *clip)

    return composed_algorithm(group_advantage("grpo", config), token_loss, config)


SPECS = (
    AlgorithmSpec(
        name="cispo",
        advantage="as GRPO",
        loss="−sg(clip(ρ)) A log p, mean over tokens",
        papers=("2506.13585",),
        use="rare tokens keep their gradient",
        build=build,
        defaults={"loss_agg_mode": "token-mean", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
        reads=("adv_estimator", "clip_ratio_low", "clip_ratio_high"),
    ),
)
