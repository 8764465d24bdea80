"""Identity preference optimisation."""

from __future__ import annotations

from mmr1.config import DpoConfig
from mmr1.trainer.offline.losses.pair_scores import PairLoss, PairScores


def ipo(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """IPO (arXiv 2310.12036, equation 17): ``(h - 1 / (2 β))²``; β is the paper's τ.

    ``h`` is the log-ratio of the chosen completion less that of the rejected one. Both are means
    over tokens, as in TRL; the paper has sums.
    """
    log_ratios = pairs.log_ratios / pairs.lengths
    loss = (log_ratios[:, 0] - log_ratios[:, 1] - 1 / (2 * config.beta)) ** 2
    return PairLoss(loss, config.beta * log_ratios)
