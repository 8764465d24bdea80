"""The best of n (arXiv 2503.19595)."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines
from mmr1.algorithms.interface import Advantage, per_completion


@advantage(
    "pass_at_k",
    paper="2503.19595",
    compares_group=True,
    example={"rewards": [1, 0.5, 0], "advantages": [1, 0, 0]},
)
def pass_at_k() -> Advantage:
    """Best less second best."""
    return Advantage(per_completion(baselines.pass_at_k))
