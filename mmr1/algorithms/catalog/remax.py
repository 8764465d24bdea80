"""ReMax (arXiv 2310.10505): the reward of the greedy completion as baseline."""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import remax
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised
from mmr1.config import RemaxAdvantage


def build(section: RemaxAdvantage) -> Advantage:
    return Advantage(_of_tokens, greedy_baseline=True)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    assert x.greedy is not None, "the loop samples the greedy completion"
    assert x.greedy_valid is not None
    return remax(penalised(x), x.valid, x.greedy, x.greedy_valid).flatten()[:, None] * x.mask
