"""Which samples come more often: by how often the policy passes them, as training goes on.

A drawn sample is kept with a probability that depends on its running pass rate; else the next one
is drawn. So samples come in proportion to that probability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from mmr1.config.data import CurriculumConfig
from mmr1.types import Sample, ScoredGroup

MOMENTUM = 0.5
"""Share of a sample's pass rate so far in its new one."""


class Curriculum:
    """The running pass rates of the samples seen so far, and the draws that they decide.

    The same seed and the same rewards give the same draws, also after a resume.
    """

    def __init__(self, config: CurriculumConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._draws = self._skipped = 0
        self._rates: dict[str, float] = {}

    def accepts(self, sample: Sample) -> bool:
        """Is this drawn sample kept? One that was never scored always is."""
        self._draws += 1
        rate = self._rates.get(_key(sample))
        if rate is None:
            return True
        digest = hashlib.sha256(f"{self._seed}/{self._draws}".encode()).digest()
        keeps = int.from_bytes(digest[:8]) / 2**64 < self.probability(rate)
        self._skipped += not keeps
        return keeps

    def probability(self, rate: float) -> float:
        """Of keeping a sample with this pass rate.

        ``hard``: ``1 - s``, Kimi k1.5's prioritized sampling (arXiv 2501.12599, section 2.3.4).
        ``learnable``: ``4 s (1 - s)``, the variance of a right or wrong answer, which is largest
        where half of them are right (arXiv 2502.12272). Never less than ``floor``.
        """
        hard = self._config.prefer == "hard"
        return max(self._config.floor, 1 - rate if hard else 4 * rate * (1 - rate))

    def learn(self, scored: Iterable[ScoredGroup]) -> None:
        """Take over the pass rates of these groups: ``m s + (1 - m) mean``, at first the mean.

        Raises:
            ValueError: The reward function that tells the pass rate has a value outside 0 to 1.
        """
        for group in scored:
            values = [r.components[self._config.function] for r in group.rewards if r.valid]
            passed = [self._passed(value) for value in values if value is not None]  # or skipped
            if not passed:
                continue
            key = _key(group.group.prompt.sample)
            mean = fmean(passed)
            before = self._rates.get(key, mean)
            self._rates[key] = MOMENTUM * before + (1 - MOMENTUM) * mean

    def stats(self) -> dict[str, float]:
        """The mean pass rate of the samples seen so far, and the share of draws not kept."""
        return {
            "curriculum/pass_rate": fmean(self._rates.values()) if self._rates else 0.0,
            "curriculum/skipped": self._skipped / max(self._draws, 1),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "skipped": self._skipped, "rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws, self._skipped = state["draws"], state["skipped"]
        self._rates = dict(state["rates"])

    def _passed(self, value: float) -> float:
        if not 0 <= value <= 1:
            raise ValueError(
                f"data.curriculum.function={self._config.function} gave {value:g}: a pass rate is "
                "the mean of values from 0 to 1; name a reward function that has such values"
            )
        return value


def _key(sample: Sample) -> str:
    return f"{sample.source}/{sample.id}"
