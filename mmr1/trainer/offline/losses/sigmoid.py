"""Direct preference optimisation, conservative and length-normalised forms included."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from mmr1.config import DpoConfig
from mmr1.trainer.offline.losses.pair_scores import PairLoss, PairScores


def sigmoid(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """DPO (arXiv 2305.18290, equation 7): ``-log σ(m)``, ``m = β (log p_w/ref_w - log p_l/ref_l)``.

    With ``dpo.label_smoothing`` ε it is conservative DPO (E. Mitchell, "A note on DPO with noisy
    preferences", 2023): ``-(1 - ε) log σ(m) - ε log σ(-m)``.
    """
    rewards = config.beta * pairs.log_ratios
    margins, smoothing = rewards[:, 0] - rewards[:, 1], config.label_smoothing
    loss = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
    return PairLoss(loss, rewards)


def sigmoid_norm(pairs: PairScores, config: DpoConfig) -> PairLoss:
    """Length-normalised DPO (Tülu 3, arXiv 2411.15124): log-ratios are means over tokens."""
    rewards = config.beta * pairs.log_ratios / pairs.lengths
    return PairLoss(-logsigmoid(rewards[:, 0] - rewards[:, 1]), rewards)
