"""The section ``scoring``: how rewards are computed, whichever they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from mmr1.machine import cores
from mmr1.section import ALL, Coefficient, Fraction, Need, Positive, Section


def _names(c: Any) -> Iterator[str | None]:
    """Yield the rewards that keys name."""
    if c.declaration.kind == "policy":
        yield None if c.data.curriculum is None else c.data.curriculum.function
        within = c.algorithm.resamples and c.algorithm.resamples.range
        named = within.metric.partition("/")[0] if within else "overall"
        yield None if named == "overall" else named
    if c.samples:
        yield from (c.eval.accuracy_function, c.eval.best_of)


class ScoringConfig(Section):
    """How rewards are computed. Answers are verified in a process pool."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            (
                "data.curriculum.function",
                "algorithm.filter_groups.range.metric",
                "eval.accuracy_function",
                "eval.sampled.best_of",
            ),
            lambda c: any(name is not None and name not in c.rewards for name in _names(c)),
            "one of them names a reward that is not in rewards; add it there, or name another",
            ("data.curriculum.function=nope",),
            commands=ALL,
        ),
    )

    workers: Positive | None = Field(
        None, description="Processes that verify answers; null: the cores of the machine"
    )
    timeout_s: Coefficient = Field(
        2.0,
        description="Seconds allowed for one answer: CPU time of a built-in reward, wall-clock "
        "time of one of your own or behind a URL",
    )
    allow_weak_sandbox: bool = Field(
        False, description="Run even if the system lacks a protection that the sandbox needs"
    )
    max_invalid_fraction: Fraction = Field(
        0.2,
        description="The run stops if a larger share of a step's completions has no valid reward",
    )

    @property
    def processes(self) -> int:
        """Processes that verify answers."""
        return self.workers or cores()
