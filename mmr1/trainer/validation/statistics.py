"""pass@k, majority vote, bootstrap intervals and paired comparisons.

Prompts are resampled, not completions, because completions of one prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
BLOCK = 2_000_000
"""Resampled values in memory at once."""


def pass_at(right: Sequence[bool], k: int) -> float:
    """Chance that k of these completions, sampled without replacement, include a right one.

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
    return fmean(
        fmean(answer_scores) for answer_scores in votes.values() if len(answer_scores) == most
    )


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979), one value per prompt.

    Args:
        values: One or more.
        seed: Seed of the :data:`RESAMPLES` resamples; equal seeds give equal intervals.
    """
    means = _resampled_means(np.asarray(values, dtype=np.float64), seed)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _resampled_means(values: np.ndarray, seed: int) -> np.ndarray:
    """``[RESAMPLES]`` means, each of ``len(values)`` values sampled with replacement."""
    generator = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(values))
    blocks = [
        values[generator.integers(0, len(values), (min(rows, RESAMPLES - start), len(values)))]
        for start in range(0, RESAMPLES, rows)
    ]
    return np.concatenate([block.mean(axis=1) for block in blocks])


@dataclass(frozen=True, slots=True)
class Paired:
    """The comparison of two models on the same prompts.

    Attributes:
        difference: Mean score of the second less that of the first.
        interval: Of the difference; prompts are resampled as pairs.
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
    from scipy.stats import binomtest

    assert len(first) == len(second), (len(first), len(second))
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    p_value = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    mean = float(differences.mean())
    return Paired(len(first), mean, interval(differences.tolist(), seed), better, worse, p_value)
