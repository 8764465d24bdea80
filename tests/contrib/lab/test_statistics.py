"""The seeds that an undecided difference needs, against repetitions drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from mmr1_contrib.lab.compare.statistics import (
    Estimate,
    estimate,
    seeds_needed,
    verdict,
    with_seeds_needed,
)


@pytest.mark.parametrize(
    ("mean", "deviation", "smallest"),
    [(0.05, 0.06, 0.02), (0.0, 0.06, 0.05), (-0.01, 0.05, -0.04), (0.03, 0.05, 0.03)],
)
def test_about_80_percent_of_repetitions_are_decided(
    mean: float, deviation: float, smallest: float
) -> None:
    half = 2.7764 * deviation / 5**0.5  # t(0.975) with 4 degrees of freedom
    difference = Estimate(mean, mean - half, mean + half, 5)
    assert verdict(difference, smallest) == "undecided"
    seeds = seeds_needed(difference, smallest)
    assert seeds is not None
    rng = np.random.default_rng(0)

    def decided(n: int) -> float:
        drawn = (estimate(list(rng.normal(mean, deviation, n))) for _ in range(1000))
        return sum(verdict(each, smallest) != "undecided" for each in drawn) / 1000

    assert 0.77 <= decided(seeds) <= 0.9
    assert decided(seeds // 2) < 0.77


def test_what_no_number_of_seeds_decides_is_said() -> None:
    difference = estimate([-1.0, 1.0])
    assert seeds_needed(difference, -1e-9) is None
    assert with_seeds_needed("undecided", difference, -1e-9) == "undecided: over 1000 seeds needed"
    assert with_seeds_needed("holds", difference, 0.0) == "holds"
    assert with_seeds_needed("undecided", estimate([1.0]), 0.0) == "undecided"
