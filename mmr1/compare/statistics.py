"""Intervals of a few seeds, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import t as student

CONFIDENCE = 0.95
Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of one number per seed, with Student's 95% interval.

    Attributes:
        low, high: None for a single seed, which has no interval.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int


def estimate(values: Sequence[float]) -> Estimate:
    """``mean ± t(n - 1) s / √n`` (Student 1908), of at least one value.

    Where all values are equal, the interval has no width.

    >>> estimate([1.0, 2.0, 3.0]).mean
    2.0
    """
    mean, n = fmean(values), len(values)
    if n == 1:
        return Estimate(mean, None, None, n)
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * stdev(values) / n**0.5
    return Estimate(mean, mean - half, mean + half, n)


def paired(more: Sequence[float], less: Sequence[float]) -> Estimate:
    """The estimate of ``more - less``, paired by seed; both in the order of the seeds."""
    return estimate([a - b for a, b in zip(more, less, strict=True)])


def verdict(difference: Estimate, smallest: float) -> Verdict:
    """The verdict whether the difference exists, and is large enough to matter.

    It does not hold where the whole interval lies below ``smallest``. It holds where the interval
    reaches ``smallest`` and lies above 0, or above ``smallest`` if that is negative: one arm is
    then not worse by as much. Everything else is undecided, also a single seed.
    """
    if difference.low is None or difference.high is None:
        return "undecided"
    if difference.high < smallest:
        return "does not hold"
    return "holds" if difference.low > min(0.0, smallest) else "undecided"
