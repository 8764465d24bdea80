"""VESPO (arXiv 2602.10693): a gamma-shaped weight of the completion's probability ratio.

``-sg(phi(w)) A log p``, ``w`` the product of a completion's token ratios and
``phi(w) = w^k exp(lambda (1 - w))``, which is 1 at ``w = 1`` and greatest at ``k / lambda``. The
form and its four numbers are those of the authors' code (``recipe/vespo/code/core_algos.py``).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmr1.algorithms import Loss, LossInputs, loss, ratios, several_updates
from mmr1.lazy import torch
from mmr1.section import Coefficient

Power = Annotated[float, Field(ge=0)]


@loss(
    "vespo",
    paper="2602.10693",
    per_completion=True,
    needs=(
        several_updates(
            "with one update per rollout every weight is 1, which algorithm.loss=reinforce is too",
            warns=True,
        ),
    ),
    example={"log_ratios": [-0.5, -0.5], "advantage": 1.0, "loss": [0.45075] * 2},
)
def vespo(
    k_pos: Power = 2.0,
    lambda_pos: Coefficient = 3.0,
    k_neg: Power = 3.0,
    lambda_neg: Coefficient = 2.0,
) -> Loss:
    """VESPO's: the policy gradient, with a gamma-shaped weight of the completion's ratio.

    Args:
        k_pos: Power of the ratio where the advantage is positive or 0.
        lambda_pos: Decay of the weight with the ratio there.
        k_neg: Power of the ratio where the advantage is negative.
        lambda_neg: Decay of the weight with the ratio there.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        w = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, "sequence")
        worse = x.advantages < 0
        k = torch.where(worse, k_neg, k_pos)
        decay = torch.where(worse, lambda_neg, lambda_pos)
        phi = (k * w.log() + decay * (1 - w)).exp()
        return phi * ratios.policy_gradient(x.logprobs, x.advantages)

    return Loss(of_tokens)
