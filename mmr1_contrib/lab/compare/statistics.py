"""Intervals of a few seeds, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import t as student

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 1000
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


def seeds_needed(difference: Estimate, smallest: float) -> int | None:
    """The seeds that decide an undecided difference with a probability of 80%, in a repetition.

    It assumes that mean and deviation are those measured, so it is rough after few seeds. The mean
    then has to be ``(t_0.975 + t_0.8) s / √n`` away from the bound (Cohen 1988, chapter 2). None
    where more than 1000 are needed, or where one seed says nothing about the deviation.
    """
    if difference.low is None or difference.high is None:
        return None
    n = difference.seeds
    width = (difference.high - difference.low) / 2
    deviation = width * n**0.5 / float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    for seeds in range(2, MOST_SEEDS + 1):
        reach = sum(float(student.ppf(p, seeds - 1)) for p in ((1 + CONFIDENCE) / 2, POWER))
        away = reach * deviation / seeds**0.5
        repeated = Estimate(difference.mean, difference.mean - away, difference.mean + away, seeds)
        if verdict(repeated, smallest) != "undecided":
            return seeds
    return None


def with_seeds_needed(found: Verdict, difference: Estimate, smallest: float) -> str:
    """A verdict as text; an undecided one with the seeds that would decide it."""
    if found != "undecided" or difference.seeds < 2:
        return found
    needed = seeds_needed(difference, smallest)
    return f"{found}: {needed or f'over {MOST_SEEDS}'} seeds needed"
