"""SAPO (arXiv 2511.20347): a smooth gate around ratio 1 in the place of the clip."""

from __future__ import annotations

from mmr1.algorithms import SelectiveLoss, loss, preset, ratios
from mmr1.algorithms.interface import Loss
from mmr1.section import Coefficient


@loss(
    "sapo",
    paper="2511.20347",
    base=SelectiveLoss,
    agg_mode="seq-mean-token-mean",
    example={"log_ratios": [0.5, -0.5], "advantage": 1.0, "loss": [-2.62689, -1.61153]},
)
def sapo(tau_pos: Coefficient = 1.0, tau_neg: Coefficient = 1.05) -> Loss:
    """SAPO's: a smooth gate around ratio 1 in the place of the clip.

    Args:
        tau_pos: Gate's temperature for positive advantages.
        tau_neg: Gate's temperature for negative advantages.
    """
    taus = (tau_pos, tau_neg)
    return Loss(lambda x: ratios.sapo(x.logprobs, x.old_logprobs, x.advantages, *taus))


preset("sapo", "a smooth gate instead of the clip", loss="sapo")
