"""DPPO (arXiv 2602.04879): a trust region of probabilities in the place of PPO's of ratios.

The variant Binary-TV of the authors' code: a token whose probability has moved by more than
``delta`` in the direction of its advantage has no gradient. So rare tokens, whose ratios are large,
still learn, and frequent ones cannot move far.
"""

from __future__ import annotations

from mmr1.algorithms import Loss, LossInputs, SelectiveLoss, loss, ratios, several_updates
from mmr1.lazy import torch
from mmr1.section import Share


@loss(
    "dppo",
    paper="2602.04879",
    base=SelectiveLoss,
    needs=(
        several_updates(
            "with one update per rollout no probability has moved, and nothing is masked",
            "algorithm.loss.delta=0.1",
            warns=True,
        ),
    ),
    example={
        "settings": {"delta": 0.1},
        "log_ratios": [-0.5, -2.5],
        "old_logprobs": [[-1.0, -2.6]],
        "advantage": 1.0,
        "loss": [0.0, -1.10517],
    },
)
def dppo(delta: Share) -> Loss:
    """DPPO's: no gradient where a token's probability has moved too far already.

    Args:
        delta: Largest change of a token's probability, its total variation.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        moved = (x.logprobs.exp() - x.old_logprobs.exp()).detach() * x.advantages.sign()
        return -ratios.ratio(x.logprobs, x.old_logprobs) * x.advantages * (moved <= delta)

    return Loss(of_tokens)
