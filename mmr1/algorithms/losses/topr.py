"""TOPR (arXiv 2503.14286): tapered importance weights for what was worse alone.

``-sg(alpha) A log p`` with ``alpha = 1`` where ``A >= 0``, else the completion's probability ratio,
at most 1. What was better is imitated however unlikely it has become, and what was worse stops to
count once the policy has left it.
"""

from __future__ import annotations

from mmr1.algorithms import Loss, LossInputs, loss, ratios, several_updates
from mmr1.lazy import torch


@loss(
    "topr",
    paper="2503.14286",
    per_completion=True,
    agg_mode="seq-mean-token-sum",
    needs=(
        several_updates(
            "with one update per rollout every weight is 1, which algorithm.loss=reinforce is too",
            warns=True,
        ),
    ),
    example={"log_ratios": [-0.5, -0.5], "advantage": -1.0, "loss": [-0.18394] * 2},
)
def topr() -> Loss:
    """TOPR's: the policy gradient, with a tapered weight for completions that were worse."""

    def of_tokens(x: LossInputs) -> torch.Tensor:
        ratio = ratios.importance_weights(x.logprobs, x.old_logprobs, x.mask, "sequence")
        alpha = torch.where(x.advantages < 0, ratio.clamp(max=1), 1.0)
        return alpha * ratios.policy_gradient(x.logprobs, x.advantages)

    return Loss(of_tokens)
