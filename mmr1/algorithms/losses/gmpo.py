"""GMPO (arXiv 2507.20673): the geometric mean of a completion's clipped token ratios.

Ratios are clipped token by token in log space, on the side that the advantage's sign makes
pessimistic, before the mean, as the authors' code does (``train_zero_math_gmpo.py``; TRL's and
verl's follow it). The bounds of 0.4 are those of section 4.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmr1.algorithms import Loss, LossInputs, loss, ratios
from mmr1.lazy import torch

LogBound = Annotated[float, Field(ge=0)]


@loss(
    "gmpo",
    paper="2507.20673",
    per_completion=True,
    agg_mode="seq-mean-token-mean",
    example={"log_ratios": [0.5, -0.2, 0.1], "advantage": 1.0, "loss": [-1.10517] * 3},
)
def gmpo(clip_low: LogBound = 0.4, clip_high: LogBound = 0.4) -> Loss:
    """GMPO's: the geometric mean of a completion's clipped token ratios.

    Args:
        clip_low: A token's log-ratio is clipped below at -this, where the advantage is negative.
        clip_high: A token's log-ratio is clipped above at this, where the advantage is positive.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        sign, log_ratio = x.advantages.sign(), x.logprobs - x.old_logprobs
        clipped = log_ratio.clamp(-clip_low, clip_high)
        pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
        return -ratios.response_logprobs(pessimistic, x.mask, per_token=True).exp() * x.advantages

    return Loss(of_tokens, ratio="completion_mean")
