"""Clip-Cov (arXiv 2505.22617): takes a few tokens out of the loss that lower the entropy most.

These are tokens whose log-prob and advantage covary, drawn at random. The values are those of the
authors' code, which clips the ratio to within 0 and 2; the paper does not mention that.
"""

from __future__ import annotations

from dataclasses import replace

from mmr1.algorithms import ClipHigh, ClipLow, loss, preset, ratios
from mmr1.algorithms.interface import Loss, LossInputs, UpdateTokens, clipped_loss
from mmr1.lazy import torch
from mmr1.section import Share

CLIP_COV_BOUNDS = (1.0, 5.0)
"""Clip-Cov draws among the tokens whose covariance lies between these."""


@loss(
    "clip_cov",
    paper="2505.22617",
    example={
        "log_ratios": [0.5, -0.5],
        "advantage": 1.0,
        "chosen": [[False, True]],
        "loss": [-1.64872, 0],
    },
)
def clip_cov(
    clip_ratio_low: ClipLow = 1.0, clip_ratio_high: ClipHigh = 1.0, ratio: Share = 2e-4
) -> Loss:
    """Clip-Cov's: leaves out a few tokens whose log-prob and advantage covary.

    Args:
        ratio: Share of the tokens, of covariance 1 to 5, taken out of the loss.
    """
    state = {"mini_batches": 0.0}  # seeds the draw
    clipped = clipped_loss(clip_ratio_low, clip_ratio_high)

    def choose(x: UpdateTokens) -> torch.Tensor:
        state["mini_batches"] += 1
        covariance = ratios.covariances(x.logprobs, x.advantages, x.mask)
        return ratios.clip_cov(covariance, ratio, *CLIP_COV_BOUNDS, int(state["mini_batches"]))

    def of_tokens(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        return clipped.of_tokens(x).masked_fill(x.chosen, 0.0)

    return replace(clipped, of_tokens=of_tokens, choose=choose, state=state)


preset("clip_cov", "the entropy collapses", loss="clip_cov")
