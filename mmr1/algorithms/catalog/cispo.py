"""CISPO (arXiv 2506.13585, section 3.1): clips the importance weight, not the update.

So no token loses its gradient. The paper does not bound the weight from below (``clip_ratio_low``
1) and gives no number for the upper bound; 4 is this project's choice.
"""

from __future__ import annotations

import torch

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import Loss, LossInputs
from mmr1.config import CispoLoss


def build(section: CispoLoss) -> Loss:
    def of_tokens(x: LossInputs) -> torch.Tensor:
        clip = (section.clip_ratio_low, section.clip_ratio_high)
        return ratios.cispo(x.logprobs, x.old_logprobs, x.advantages, *clip)

    return Loss(of_tokens)
