"""KL-Cov (arXiv 2505.22617): holds the tokens that lower the entropy most near the old policy.

These are tokens whose log-prob and advantage covary most. The values are those of the authors'
code, which measures the KL by ``|log rho|``.
"""

from __future__ import annotations

from mmr1.algorithms import loss, preset, ratios, several_updates
from mmr1.algorithms.interface import Loss, LossInputs, UpdateTokens
from mmr1.algorithms.kl import absolute
from mmr1.lazy import torch
from mmr1.section import Coefficient, Share


@loss(
    "kl_cov",
    paper="2505.22617",
    needs=(
        several_updates(
            "this loss holds the policy near the one that sampled, from which the only update of "
            "a rollout does not differ"
        ),
    ),
    example={"log_ratios": [0.5, -0.5], "advantage": 1.0, "loss": [-1.64872, -0.60653]},
)
def kl_cov(ratio: Share = 2e-3, coef: Coefficient = 1.0) -> Loss:
    """KL-Cov's: holds the tokens of the highest covariance near the policy before the update.

    Args:
        ratio: Share of the tokens that are held.
        coef: Coefficient of their KL (verl: ppo_kl_coef).
    """

    def choose(x: UpdateTokens) -> torch.Tensor:
        return ratios.kl_cov(ratios.covariances(x.logprobs, x.advantages, x.mask), ratio)

    def penalty(x: LossInputs) -> torch.Tensor:
        assert x.chosen is not None, "the loop chooses"
        return coef * absolute(x.logprobs, x.old_logprobs) * x.chosen

    return Loss(
        lambda x: -ratios.ratio(x.logprobs, x.old_logprobs) * x.advantages,
        penalty=penalty,
        choose=choose,
    )


preset("kl_cov", "the entropy collapses", loss="kl_cov")
