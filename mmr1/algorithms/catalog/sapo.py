"""SAPO (arXiv 2511.20347): a smooth gate around ratio 1 in the place of the clip."""

from __future__ import annotations

import torch

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import Loss, LossInputs
from mmr1.config import SapoLoss


def build(section: SapoLoss) -> Loss:
    def of_tokens(x: LossInputs) -> torch.Tensor:
        taus = (section.tau_pos, section.tau_neg)
        return ratios.sapo(x.logprobs, x.old_logprobs, x.advantages, *taus)

    return Loss(of_tokens)
