"""GSPO (arXiv 2507.18071): PPO's loss with the geometric mean of a completion's token ratios."""

from __future__ import annotations

from mmr1.algorithms import ClipDual, ClipHigh, ClipLow, loss, preset
from mmr1.algorithms.interface import Loss, clipped_loss


@loss(
    "gspo",
    paper="2507.18071",
    per_completion=True,
    agg_mode="seq-mean-token-mean",
    example={"log_ratios": [0.5, -0.4], "advantage": 1.0, "loss": [-1.0004, -1.0004]},
)
def gspo(
    clip_ratio_dual: ClipDual = None,
    clip_ratio_low: ClipLow = 3e-4,  # the values of section 5.1
    clip_ratio_high: ClipHigh = 4e-4,
) -> Loss:
    """GSPO's: the geometric mean of a completion's token ratios, clipped."""
    clip = (clip_ratio_low, clip_ratio_high, clip_ratio_dual)
    return clipped_loss(*clip, ratio="completion_mean")


preset("gspo", "mixture-of-experts models, several updates per rollout", loss="gspo")
