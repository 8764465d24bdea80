"""PPO's other loss (arXiv 1707.06347, section 4): a KL penalty in the place of the clip."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmr1.algorithms import SelectiveLoss, loss, ratios, several_updates
from mmr1.algorithms.interface import Loss
from mmr1.algorithms.kl import k3
from mmr1.section import Coefficient


class PpoKlLoss(SelectiveLoss):
    """PPO's other form: a KL penalty in the place of the clip."""

    type: Literal["ppo_kl"] = "ppo_kl"
    coef: Coefficient = Field(
        description="Coefficient of the KL to the policy before the rollout's first update"
    )
    target: Coefficient | None = Field(
        None, description="Halve or double coef to reach this KL per token; null: it is fixed"
    )


@loss(
    "ppo_kl",
    paper="1707.06347",
    section=PpoKlLoss,  # the update adapts its coef
    example={
        "settings": {"coef": 0.5},
        "log_ratios": [0.5, -0.5],
        "advantage": 1.0,
        "loss": [-1.64872, -0.60653],
    },
    needs=(
        several_updates(
            "this loss holds the policy near the one that sampled, from which the only update of "
            "a rollout does not differ",
            "algorithm.loss.coef=1",
        ),
    ),
)
def ppo_kl(section: PpoKlLoss) -> Loss:
    """``loss/ppo_kl_last`` is the KL that the loss has, before the rollout's last update."""
    return Loss(
        lambda x: -ratios.ratio(x.logprobs, x.old_logprobs) * x.advantages,
        # Of the tokens that the old policy drew.
        penalty=lambda x: x.ppo_kl_coef * k3(x.old_logprobs, x.logprobs),
        metrics=lambda x: {"loss/ppo_kl_last": k3(x.old_logprobs, x.logprobs)},
        needs_signal=False,
    )
