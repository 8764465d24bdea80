"""CISPO (arXiv 2506.13585, section 3.1): clips the importance weight, not the update.

So no token loses its gradient. The paper does not bound the weight from below (``clip_ratio_low``
1) and gives no number for the upper bound; 4 is this project's choice.
"""

from __future__ import annotations

from mmr1.algorithms import ClipHigh, ClipLow, SelectiveLoss, loss, preset, ratios
from mmr1.algorithms.interface import Loss


@loss(
    "cispo",
    paper="2506.13585",
    base=SelectiveLoss,
    example={"log_ratios": [0.5, -0.5], "advantage": 1.0, "loss": [-0.82436, 0.30327]},
)
def cispo(clip_ratio_low: ClipLow = 1.0, clip_ratio_high: ClipHigh = 4.0) -> Loss:
    """CISPO's: clips the importance weight, not the update."""
    clip = (clip_ratio_low, clip_ratio_high)
    return Loss(lambda x: ratios.cispo(x.logprobs, x.old_logprobs, x.advantages, *clip))


preset("cispo", "rare tokens keep their gradient", loss="cispo")
