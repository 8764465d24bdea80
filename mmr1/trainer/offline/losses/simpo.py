"""Simple preference optimisation, which has no reference."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from mmr1.config import DpoConfig
from mmr1.trainer.offline.losses.pair_scores import PairLoss, PairScores


def simpo(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """SimPO (arXiv 2405.14734, equation 6): ``-log σ(β/|w| log p_w - β/|l| log p_l - γ)``.

    γ is ``dpo.simpo_gamma``.
    """
    rewards = config.beta * pairs.logprobs / pairs.lengths
    return PairLoss(-logsigmoid(rewards[:, 0] - rewards[:, 1] - config.simpo_gamma), rewards)
