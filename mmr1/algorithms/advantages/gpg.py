"""GPG (arXiv 2504.02546)."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage, per_completion


@advantage(
    "gpg",
    paper="2504.02546",
    compares_group=True,
    example={"rewards": [1, 0, 0, 1], "advantages": [0.5, -0.5, -0.5, 0.5]},
)
def gpg() -> Advantage:
    """α (r − group mean), scaled up for groups without a signal."""
    return Advantage(per_completion(baselines.gpg))


preset("gpg", "the plain policy gradient, scaled up for groups without a signal", advantage="gpg")
