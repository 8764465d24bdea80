"""SAPO (arXiv 2511.20347): a smooth gate around ratio 1 in the place of the clip."""

from __future__ import annotations

import torch

from mmr1.config import SapoLoss
from mmr1.trainer.algorithms import losses
from mmr1.trainer.algorithms.algorithm import Loss, LossInputs


def build(section: SapoLoss) -> Loss:
    def of_tokens(x: LossInputs) -> torch.Tensor:
        taus = (section.tau_pos, section.tau_neg)
        return losses.sapo(x.logprobs, x.old_logprobs, x.advantages, *taus)

    return Loss(of_tokens)
