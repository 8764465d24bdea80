"""Advantages that compare the completions of a prompt and are the same for all tokens of one."""

from __future__ import annotations

from functools import partial

import torch

from mmr1.algorithms import baselines
from mmr1.algorithms.interface import Advantage, AdvantageInputs, penalised, per_completion
from mmr1.config import (
    GdpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    OptimalBaselineAdvantage,
    PassAtKAdvantage,
    RlooAdvantage,
)


def build_grpo(section: GrpoAdvantage) -> Advantage:
    """GRPO (arXiv 2402.03300, section 4.1), Dr.GRPO (2503.20783) or by the batch (2508.08221)."""
    if section.scale_rewards == "none":
        return Advantage(per_completion(baselines.dr_grpo))
    scaled = baselines.grpo if section.scale_rewards == "group" else baselines.batch_std
    return Advantage(per_completion(partial(scaled, eps=section.epsilon)))


def build_rloo(section: RlooAdvantage) -> Advantage:
    """RLOO (arXiv 2402.14740)."""
    return Advantage(per_completion(baselines.rloo))


def build_pass_at_k(section: PassAtKAdvantage) -> Advantage:
    """The best of n (arXiv 2503.19595)."""
    return Advantage(per_completion(baselines.pass_at_k))


def build_gpg(section: GpgAdvantage) -> Advantage:
    """GPG (arXiv 2504.02546)."""
    return Advantage(per_completion(baselines.gpg))


def build_optimal_baseline(section: OptimalBaselineAdvantage) -> Advantage:
    """OPO (arXiv 2505.23585)."""

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        lengths = x.mask.sum(-1).view(x.rewards.shape)
        of_completion = baselines.optimal_baseline(penalised(x), x.valid, lengths)
        return of_completion.flatten()[:, None] * x.mask

    return Advantage(of_tokens)


def build_gdpo(section: GdpoAdvantage) -> Advantage:
    """GDPO (arXiv 2601.05242)."""

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        assert x.components is not None, "the loop knows the weights"
        assert x.weights is not None
        return baselines.gdpo(x.components, x.weights, x.valid).flatten()[:, None] * x.mask

    return Advantage(of_tokens)
