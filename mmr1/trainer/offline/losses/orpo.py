"""Odds ratio preference optimisation: supervised training and preferences in one loss."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from mmr1.config import DpoConfig
from mmr1.trainer.offline.losses.pair_scores import PairLoss, PairScores


def orpo(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """ORPO (arXiv 2403.07691, equations 6 and 7): ``-log p_w - β log σ(log odds_w - log odds_l)``.

    ``log p`` is the mean over the completion's tokens, ``odds = p / (1 - p)``, and β is the
    paper's λ.
    """
    mean_logprobs = pairs.logprobs / pairs.lengths
    certain = mean_logprobs.clamp(max=-1e-7)  # the odds of probability 1 are infinite
    log_odds = certain - torch.log(-torch.expm1(certain))
    preference = -logsigmoid(log_odds[:, 0] - log_odds[:, 1])
    return PairLoss(-mean_logprobs[:, 0] + config.beta * preference, config.beta * mean_logprobs)
