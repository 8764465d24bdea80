"""REINFORCE++ and REINFORCE++-baseline (arXiv 2501.03262): advantages normalised over the batch.

They differ in the baseline and in where the KL is: REINFORCE++ takes a KL penalty per token
(estimator k1) off the reward, the other has a KL term (estimator k2) in its loss.
"""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import dr_grpo, reinforce_pp, reinforce_pp_baseline
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised
from mmr1.config import ReinforcePpAdvantage, ReinforcePpBaselineAdvantage


def build(section: ReinforcePpAdvantage) -> Advantage:
    return Advantage(
        lambda x: reinforce_pp(x.rewards.flatten(), x.kl_penalty, x.mask, section.gamma)
    )


def build_with_baseline(section: ReinforcePpBaselineAdvantage) -> Advantage:
    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        if section.kl_to_go:
            return reinforce_pp(dr_grpo(x.rewards, x.valid).flatten(), x.kl_penalty, x.mask)
        return reinforce_pp_baseline(penalised(x), x.valid, x.mask)

    return Advantage(of_tokens)
