"""OPO (arXiv 2505.23585)."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised
from mmr1.lazy import torch


@advantage(
    "optimal_baseline",
    paper="2505.23585",
    compares_group=True,
    example={"rewards": [1, 0, 0, 1], "advantages": [0.5, -0.5, -0.5, 0.5]},
)
def optimal_baseline() -> Advantage:
    """r − the group's mean weighted by length (OPO)."""

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        lengths = x.mask.sum(-1).view(x.rewards.shape)
        of_completion = baselines.optimal_baseline(penalised(x), x.valid, lengths)
        return of_completion.flatten()[:, None] * x.mask

    return Advantage(of_tokens)
