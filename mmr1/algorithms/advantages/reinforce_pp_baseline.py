"""REINFORCE++-baseline (arXiv 2501.03262): the group's mean, then normalised over the batch."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised
from mmr1.lazy import torch
from mmr1.section import Need


@advantage(
    "reinforce_pp_baseline",
    paper="2501.03262",
    compares_group=True,
    needs=(
        Need(
            ("algorithm.advantage.kl_to_go", "algorithm.kl.type"),
            lambda c: (
                c.algorithm.advantage.kl_to_go and getattr(c.algorithm.kl, "type", None) != "reward"
            ),
            "there is no KL penalty in the reward; set algorithm.kl.type=reward, or leave it out",
            ("algorithm.advantage.kl_to_go=true",),
            warns=True,
        ),
    ),
    example={"rewards": [1, 0, 0, 1], "advantages": [1, -1, -1, 1]},
)
def reinforce_pp_baseline(kl_to_go: bool = False) -> Advantage:
    """r − group mean, normalised over the batch (REINFORCE++-baseline).

    Args:
        kl_to_go: Subtract a token's KL penalties, its own and those to come, after the group mean
            (OpenRLHF, LMM-R1); false: their sum before it (verl). For algorithm.kl.type=reward.
    """

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        if kl_to_go:
            centred = baselines.dr_grpo(x.rewards, x.valid).flatten()
            return baselines.reinforce_pp(centred, x.kl_penalty, x.mask)
        return baselines.reinforce_pp_baseline(penalised(x), x.valid, x.mask)

    return Advantage(of_tokens)


preset(
    "reinforce_pp_baseline",
    "groups, without GRPO's division by each group's deviation",
    advantage="reinforce_pp_baseline",
    kl={"type": "loss", "estimator": "k2"},
)
