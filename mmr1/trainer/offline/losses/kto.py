"""Kahneman-Tversky optimisation: answers that are wanted or not, no pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from mmr1.config import DpoConfig


def kto(
    log_ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor, config: DpoConfig
) -> torch.Tensor:
    """KTO (arXiv 2402.01306, equation 8): ``[C]``, the loss of each completion.

    ``λ_D (1 - σ(β (r - z)))`` where it is wanted, ``λ_U (1 - σ(β (z - r)))`` where it is not.

    Args:
        log_ratios: ``[C]``: r, log p / p_ref of whole completions.
        desirable: ``[C]`` bool.
        kl: The reference point z; see :func:`reference_point`. No gradient flows through it.
        config: For β, λ_D and λ_U; one that is not set is 1.
    """
    gains = config.beta * (log_ratios - kl.detach())
    signs = torch.where(desirable, 1.0, -1.0).to(gains)
    wanted, unwanted = (
        1.0 if weight is None else weight
        for weight in (config.desirable_weight, config.undesirable_weight)
    )
    weights = torch.where(desirable, wanted, unwanted)
    return weights.to(gains) * torch.sigmoid(-signs * gains)


def balanced(desirable: Sequence[Sequence[bool]]) -> list[tuple[float, ...]]:
    """For each label a weight at most 1 that gives both kinds of labels the same sum.

    The paper and TRL ask for sums that are about equal. A policy's own completions are rarely so:
    where most are wrong and all weigh alike, it learns to say nothing that it said before.
    """
    counts = Counter(label for labels in desirable for label in labels)
    rarer = min(counts.values()) if len(counts) == 2 else 0
    weights = {label: rarer / count if rarer else 1.0 for label, count in counts.items()}
    return [tuple(weights[label] for label in labels) for labels in desirable]


def reference_point(mean_log_ratio: torch.Tensor) -> torch.Tensor:
    """z of KTO: how far the policy is from the reference, in nats, at least 0.

    Args:
        mean_log_ratio: The mean log p / p_ref of completions of other prompts, one per prompt.
    """
    return mean_log_ratio.clamp(min=0)
