"""pass@k, majority vote, bootstrap intervals and paired comparisons.

Prompts are resampled, not completions, because completions of one prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

import numpy as np

from mmr1.extras import needs_extra

RESAMPLES = 10_000
CONFIDENCE = 0.95
DRAWS_AT_ONCE = 2_000_000
"""Numbers drawn in one batch; 10,000 resamples of 5,000 prompts at once would be 400 MB."""


def pass_at(right: Sequence[bool], k: int) -> float:
    """Probability that k of these completions, sampled without replacement, include a right one.

    ``1 - C(n - c, k) / C(n, k)``, unbiased (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    >>> pass_at([True, False, False, False], 2)
    0.5
    """
    n, c = len(right), sum(right)
    assert 1 <= k <= n, (k, n)
    return 1 - comb(n - c, k) / comb(n, k)


def majority(answers: Sequence[str | None], scores: Sequence[float]) -> float:
    """Score of the most frequent answer (Wang et al. 2022, arXiv:2203.11171).

    Tied answers share the vote, so the order of the completions does not matter. Completions
    without an answer do not vote. Without any vote the score is 0.

    >>> majority(["4", "5", "4", None], [1.0, 0.0, 1.0, 0.0]), majority(["4", "5"], [1.0, 0.0])
    (1.0, 0.5)
    """
    votes: dict[str, list[float]] = {}
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(score)
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    return fmean(fmean(group) for group in votes.values() if len(group) == most)


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the interval of the mean score, one score per prompt.

    Of scores 0 and 1 it is Wilson's (1927) interval of a share, which has a width also where all
    prompts are right, or none. Of other scores it is a percentile bootstrap (Efron 1979).

    Args:
        values: At least one; of a single value between 0 and 1 the interval has no width.
        seed: Seed of the :data:`RESAMPLES` resamples; equal seeds give equal intervals.

    >>> [round(bound, 2) for bound in interval([0.0] * 4)]
    [0.0, 0.49]
    """
    if {*values} <= {0, 1}:
        with needs_extra("report", "the interval of a share"):
            from scipy.stats import binomtest
        share = binomtest(int(sum(values)), len(values))
        low, high = share.proportion_ci(CONFIDENCE, method="wilson")
        return float(low), float(high)
    return _bootstrap(values, seed)


def _bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
    if len(values) == 1:  # scipy asks for two
        return float(values[0]), float(values[0])
    with needs_extra("report", "an interval by bootstrap"):
        from scipy.stats import bootstrap
    low, high = bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, DRAWS_AT_ONCE // len(values)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Paired:
    """The comparison of two models on the same prompts.

    Attributes:
        difference: Mean score of the second less that of the first.
        interval: Interval of the difference; prompts are resampled as pairs.
        better, worse: Prompts on which the second scores above, and below, the first.
        p_value: Exact sign test of ``better`` against ``worse``, two-sided; on right or wrong
            answers it is McNemar's exact test. 1 where they never differ.
    """

    prompts: int
    difference: float
    interval: tuple[float, float]
    better: int
    worse: int
    p_value: float


def paired(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Paired:
    """Compare scores of the same prompts, in the same order; at least one."""
    with needs_extra("report", "the comparison of two models"):
        from scipy.stats import binomtest

    assert len(first) == len(second), (len(first), len(second))
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    p_value = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    mean = float(differences.mean())
    return Paired(len(first), mean, _bootstrap(differences.tolist(), seed), better, worse, p_value)
