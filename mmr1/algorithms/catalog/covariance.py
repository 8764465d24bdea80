"""Clip-Cov and KL-Cov (arXiv 2505.22617): fewer updates of the tokens that lower the entropy most.

These are tokens whose log-prob and advantage covary. Clip-Cov takes a few of them out of the loss,
drawn at random. KL-Cov holds those of the highest covariance near the policy before the update.
The values are those of the authors' code. It measures KL-Cov's KL by ``|log rho|``, and clips the
ratio of Clip-Cov to within 0 and 2, which the paper does not mention.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import Loss, LossInputs, UpdateTokens, clipped_loss
from mmr1.algorithms.kl import absolute
from mmr1.config import ClipCovLoss, KlCovLoss

CLIP_COV_BOUNDS = (1.0, 5.0)
"""Clip-Cov draws among the tokens whose covariance lies between these."""


def build_clip_cov(section: ClipCovLoss) -> Loss:
    state = {"mini_batches": 0.0}  # seeds the draw
    clipped = clipped_loss(section.clip_ratio_low, section.clip_ratio_high)

    def choose(x: UpdateTokens) -> torch.Tensor:
        state["mini_batches"] += 1
        covariance = ratios.covariances(x.logprobs, x.advantages, x.mask)
        seed = int(state["mini_batches"])
        return ratios.clip_cov(covariance, section.ratio, *CLIP_COV_BOUNDS, seed)

    def of_tokens(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        return clipped.of_tokens(x).masked_fill(x.chosen, 0.0)

    return replace(clipped, of_tokens=of_tokens, choose=choose, state=state)


def build_kl_cov(section: KlCovLoss) -> Loss:
    def choose(x: UpdateTokens) -> torch.Tensor:
        covariance = ratios.covariances(x.logprobs, x.advantages, x.mask)
        return ratios.kl_cov(covariance, section.ratio)

    def penalty(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        return section.coef * absolute(x.logprobs, x.old_logprobs) * x.chosen

    return Loss(
        lambda x: -ratios.ratio(x.logprobs, x.old_logprobs) * x.advantages,
        penalty=penalty,
        choose=choose,
    )
