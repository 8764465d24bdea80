"""ReMax (arXiv 2310.10505): the reward of the greedy completion as baseline."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised
from mmr1.lazy import torch


@advantage(
    "remax",
    paper="2310.10505",
    example={
        "rewards": [1, 0],
        "greedy": [[0.25]],
        "greedy_valid": [[True]],
        "advantages": [0.75, -0.25],
    },
)
def remax() -> Advantage:
    """r − reward of the greedy completion."""
    return Advantage(_of_tokens, greedy_baseline=True)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    assert x.greedy is not None, "the loop samples the greedy completion"
    assert x.greedy_valid is not None
    made = baselines.remax(penalised(x), x.valid, x.greedy, x.greedy_valid)
    return made.flatten()[:, None] * x.mask


preset("remax", "a baseline for n = 1, at the cost of one more rollout", advantage="remax")
