"""How far two rewards agree on the same completions, so that one can be trusted by the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

from mmr1.types import Reward


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts of two rewards; a completion passes where its reward is at the threshold or above.

    Attributes:
        both_pass: Completions that pass by both, and so on.
        invalid: Completions without a valid reward by the first, by the second.
        correlation: Pearson's r of the values; None where one of them is constant.
        disagreements: Indices of the completions on which they differ, the largest difference of
            the values first.
    """

    both_pass: int
    only_first: int
    only_second: int
    neither: int
    invalid: tuple[int, int]
    correlation: float | None
    disagreements: tuple[int, ...]

    @property
    def compared(self) -> int:
        """Completions with two valid rewards."""
        return self.both_pass + self.only_first + self.only_second + self.neither

    @property
    def share(self) -> float | None:
        """Share of the compared completions on which they agree; None without any."""
        return (self.both_pass + self.neither) / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (1960): agreement beyond chance; None where chance agrees always."""
        total = self.compared
        first = self.both_pass + self.only_first
        second = self.both_pass + self.only_second
        chance = (first * second + (total - first) * (total - second)) / max(total, 1) ** 2
        return None if self.share is None or chance == 1 else (self.share - chance) / (1 - chance)


def compare(first: Sequence[Reward], second: Sequence[Reward], threshold: float) -> Agreement:
    """The agreement of two rewards of the same completions."""
    pairs = {
        index: (a.value, b.value)
        for index, (a, b) in enumerate(zip(first, second, strict=True))
        if a.value is not None and b.value is not None
    }
    verdicts = {i: (a >= threshold, b >= threshold) for i, (a, b) in pairs.items()}
    counts = list(verdicts.values())
    differing = [i for i, (a, b) in verdicts.items() if a != b]
    return Agreement(
        counts.count((True, True)),
        counts.count((True, False)),
        counts.count((False, True)),
        counts.count((False, False)),
        (sum(not r.valid for r in first), sum(not r.valid for r in second)),
        _correlation(list(pairs.values())),
        tuple(sorted(differing, key=lambda i: (-abs(pairs[i][0] - pairs[i][1]), i))),
    )


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    try:
        return correlation([a for a, _ in pairs], [b for _, b in pairs])
    except StatisticsError:  # fewer than two, or no spread
        return None
