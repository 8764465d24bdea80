"""RLOO (arXiv 2402.14740)."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, per_completion


@advantage(
    "rloo",
    paper="2402.14740",
    compares_group=True,
    example={"rewards": [1, 0, 0, 1], "advantages": [0.66667, -0.66667, -0.66667, 0.66667]},
)
def rloo() -> Advantage:
    """r − mean of the other n − 1."""
    return Advantage(per_completion(baselines.rloo))


preset("rloo", "unbiased, no division by the deviation", advantage="rloo")
