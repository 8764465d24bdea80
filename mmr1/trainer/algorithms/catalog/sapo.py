"""SAPO (arXiv 2511.20347): a smooth gate around ratio 1 instead of the clip."""

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
        return losses.sapo(x.logprobs, x.old_logprobs, x.advantages, *config.sapo_tau)

    return composed_algorithm(group_advantage("grpo", config), token_loss, config)


SPECS = (
    AlgorithmSpec(
        name="sapo",
        advantage="as GRPO",
        loss="−(4/τ) σ(τ(ρ − 1)) A, mean over each completion",
        papers=("2511.20347",),
        use="a smooth gate instead of the clip",
        build=build,
        reads=("adv_estimator", "sapo_tau"),
    ),
)
