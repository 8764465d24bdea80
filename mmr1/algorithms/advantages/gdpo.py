"""GDPO (arXiv 2601.05242)."""

from __future__ import annotations

from mmr1.algorithms import AdvantageConfig, advantage, baselines, kl_elsewhere
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.lazy import torch


@advantage(
    "gdpo",
    paper="2601.05242",
    base=AdvantageConfig,
    compares_group=True,
    per_function=True,
    needs=(kl_elsewhere("this advantage reads no reward that could hold a penalty"),),
    example={
        "rewards": [1, 0, 0, 1],
        "components": [[[1, 0, 0, 1]]],
        "weights": [1.0],
        "advantages": [0.86602, -0.86602, -0.86602, 0.86602],
    },
)
def gdpo() -> Advantage:
    """Each reward function normalised separately."""

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        assert x.components is not None, "the loop knows the weights"
        assert x.weights is not None
        return baselines.gdpo(x.components, x.weights, x.valid).flatten()[:, None] * x.mask

    return Advantage(of_tokens)
