"""PPO's loss (arXiv 1707.06347): the clipped ratio of each token."""

from __future__ import annotations

from mmr1.algorithms import ClipDual, ClipHigh, ClipLow, SelectiveLoss, loss, preset
from mmr1.algorithms.interface import Loss, clipped_loss


@loss(
    "ppo",
    paper=("1707.06347", "2503.14476", "1912.09729"),
    base=SelectiveLoss,
    example={"log_ratios": [0.5, -0.5], "advantage": 1.0, "loss": [-1.2, -0.60653]},
)
def ppo(
    clip_ratio_dual: ClipDual = None, clip_ratio_low: ClipLow = 0.2, clip_ratio_high: ClipHigh = 0.2
) -> Loss:
    """PPO's: the clipped ratio of each token."""
    return clipped_loss(clip_ratio_low, clip_ratio_high, clip_ratio_dual)


# Its overlong shaping (section 3.4) is the reward function `overlong`.
preset(
    "dapo",
    "long reasoning",
    loss={"type": "ppo", "clip_ratio_high": 0.28},
    filter_groups="resample",
    papers="2503.14476",
)
