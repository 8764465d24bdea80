"""Verdicts per second of the math reward: the fast path, and the verifier uncached and cached.

The code of ``mmr1 reward bench``. It is in the package, not in ``scripts/bench``, because the
command measures a user's own machine after ``pip install``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from mmr1.rewards.item import Job
from mmr1.rewards.math.equality import decide, math
from mmr1.rewards.sandbox.pool import Pool


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table."""

    what: str
    verdicts: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.verdicts / self.seconds


def plain_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs of gold and answer that need no algebra: integers, decimals, fractions, letters."""
    random = Random(seed)
    pairs = []
    for _ in range(count):
        number, other = random.randrange(10_000), random.randrange(10_000)
        pairs.append(
            random.choice(
                [
                    (str(number), str(number)),
                    (str(number), str(other)),
                    (str(number), f"{number}.0"),
                    (f"{number}/7", f"{other}/7"),
                    (f"0.{number:04}", f"0.{other:04}"),
                    (random.choice("ABCD"), random.choice("ABCD")),
                ]
            )
        )
    return pairs


def algebra_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs of gold and answer that only algebra can compare. No gold occurs twice."""
    random = Random(seed)
    pairs = []
    for n in range(count):
        a, b, c = n + 2, random.randrange(2, 20), random.randrange(2, 20)
        pairs.append(
            random.choice(
                [
                    (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
                    (rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{c}"),
                    (rf"({a}, {b})", rf"({a}, {c})"),
                    (rf"{a}x + {b}", rf"{b} + {a}x"),
                    (rf"\frac{{\sqrt{{{a}}}}}{{{b}}}", rf"\frac{{\sqrt{{{a}}}}}{{{c}}}"),
                ]
            )
        )
    return pairs


def run_bench(verdicts: int, workers: Sequence[int]) -> list[Measurement]:
    """Time each path.

    Args:
        verdicts: Uncached verdicts of sympy for each pool size.
        workers: Pool sizes.
    """
    plain = plain_pairs(100_000)
    measurements = [_timed("fast path, answer against answer", len(plain), lambda: _decide(plain))]
    completions = [
        (f"<think>so</think>\n<answer>{answer}</answer>", gold) for gold, answer in plain
    ]
    measurements.append(
        _timed("fast path, whole completions", len(plain), lambda: _score(completions))
    )
    for size in workers:
        jobs = [j for j in (decide(*p) for p in algebra_pairs(verdicts)) if isinstance(j, Job)]
        with Pool(size, timeout_s=10.0) as pool:
            pool.start()
            label = f"sympy path, {size} worker{'s' if size > 1 else ''}"
            measurements.append(_timed(f"{label}, uncached", len(jobs), lambda: pool.run(jobs)))  # noqa: B023
            measurements.append(_timed(f"{label}, cached", len(jobs), lambda: pool.run(jobs)))  # noqa: B023
    return measurements


def _decide(pairs: Sequence[tuple[str, str]]) -> None:
    for gold, answer in pairs:
        decide(gold, answer)


def _score(completions: Sequence[tuple[str, str]]) -> None:
    for completion, gold in completions:
        math(completion, gold)


def _timed(what: str, verdicts: int, work: object) -> Measurement:
    assert callable(work)
    start = time.perf_counter()
    work()
    return Measurement(what, verdicts, time.perf_counter() - start)
