"""The R1 paper's loss (arXiv 2501.12948): the ratio, and the KL term, of whole completions."""

from __future__ import annotations

from mmr1.algorithms import ClipDual, ClipHigh, ClipLow, LossConfig, loss
from mmr1.algorithms.interface import Loss, clipped_loss


@loss(
    "sequence_ppo",
    paper="2501.12948",
    base=LossConfig,
    per_completion=True,
    example={"log_ratios": [0.5, -0.4], "advantage": 1.0, "loss": [-1.10517, -1.10517]},
)
def sequence_ppo(
    clip_ratio_dual: ClipDual = None, clip_ratio_low: ClipLow = 0.2, clip_ratio_high: ClipHigh = 0.2
) -> Loss:
    """The R1 paper's: the ratio of the whole completion, clipped; its KL is of completions too."""
    clip = (clip_ratio_low, clip_ratio_high, clip_ratio_dual)
    return clipped_loss(*clip, ratio="completion", kl="completion")
