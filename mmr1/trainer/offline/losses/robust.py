"""DPO that is unbiased when a known share of the labels is wrong."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from mmr1.config import DpoConfig
from mmr1.trainer.offline.losses.pair_scores import PairLoss, PairScores


def robust(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """Robust DPO (arXiv 2403.00409): ``(-(1 - ε) log σ(m) + ε log σ(-m)) / (1 - 2 ε)``.

    ``m`` is DPO's margin, ε is ``dpo.label_smoothing``. The expectation over labels that are
    flipped with probability ε is the DPO loss of the labels before they were flipped.
    """
    rewards = config.beta * pairs.log_ratios
    margins, flipped = rewards[:, 0] - rewards[:, 1], config.label_smoothing
    loss = -(1 - flipped) * logsigmoid(margins) + flipped * logsigmoid(-margins)
    return PairLoss(loss / (1 - 2 * flipped), rewards)
