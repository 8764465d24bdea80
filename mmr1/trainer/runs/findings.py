"""Findings that hold by themselves, without a comparison to other steps of the run.

The terminal says them during the run, the report shows them, and ``mmr1 check`` looks for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

Columns = Mapping[str, Sequence[Any]]
"""``metrics.jsonl`` by metric; None for the steps without it."""

FLAT_STEPS = 4
"""Steps after which a reward function that gives one value is a finding."""
HIGH_GAP, GAP_STEPS = 0.03, 2
"""Log-prob difference of engine and trainer in nats, and the first steps that must exceed it."""
GAPS = ("rollout/logprob_diff_current", "rollout/logprob_diff_mean")
"""Metrics of that difference; the first has only tokens that the current weights sampled."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line at the top of the report.

    Attributes:
        steps: The first and the last step that show it.
        filter: Filter of the rollout browser: the completions that show it.
    """

    title: str
    detail: str
    remedy: str
    steps: tuple[int, int]
    filter: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON, for the page."""
        return asdict(self)


def reward_of(metric: str, statistic: str) -> str | None:
    """Return the reward function whose statistic a metric is, ``math`` of ``rewards/math/mean``.

    None for a metric of another section or statistic.
    """
    section, _, name = metric.partition("/")
    name, _, found = name.rpartition("/")
    return name if (section, found) == ("rewards", statistic) else None


def flat_rewards(columns: Columns) -> Iterator[Finding]:
    """Find reward functions that have given one value to every completion of the run."""
    for metric in columns:
        if (name := reward_of(metric, "std")) is None:
            continue
        stds, means = _numbers(columns, metric), _numbers(columns, f"rewards/{name}/mean")
        if len(stds) < FLAT_STEPS or any(std for _, std in stds) or len({*means}) == 0:
            continue
        if len({mean for _, mean in means}) > 1:
            continue
        yield Finding(
            "A reward function never varies",
            f"'{name}' has given {means[0][1]:g} to every completion, so it teaches nothing",
            f"read the completions: its answers may be written otherwise than "
            f"rewards.{name} reads them (mmr1 reward score says how); else leave it out, "
            "or teach the format first (mmr1 sft)",
            (stds[0][0], stds[-1][0]),
        )


def high_gap(columns: Columns) -> Iterator[Finding]:
    """Find a log-prob difference of engine and trainer that is high from the first step on."""
    gaps = next((found for name in GAPS if (found := _numbers(columns, name))), [])
    above = list(takewhile(lambda gap: gap[1] > HIGH_GAP, gaps))
    if len(above) >= GAP_STEPS:
        yield Finding(
            "Engine and trainer disagree from the start",
            f"their log-probs differ by {min(gap for _, gap in above):.2g} nats per token or more "
            f"(usual: below {HIGH_GAP:g})",
            "stop the run: they do not compute the same model. Compare them with mmr1 parity, and "
            "look at model.dtype, rollout.engine.dtype and quantization",
            (above[0][0], above[-1][0]),
        )


def absolute_findings(columns: Columns) -> list[Finding]:
    """Return all findings of this module."""
    return [*flat_rewards(columns), *high_gap(columns)]


def _numbers(columns: Columns, name: str) -> list[tuple[int, float]]:
    """Return ``(step, value)`` of a metric's finite values in training steps."""
    steps = columns.get("step", ())
    return [
        (int(step), float(value))
        for step, value in zip(steps, columns.get(name, [None] * len(steps)), strict=True)
        if is_number(step) and step > 0 and is_number(value)
    ]


def is_number(value: Any) -> bool:
    """Return whether a value of ``metrics.jsonl`` is a finite number."""
    try:
        return not isinstance(value, bool | str | bytes) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False
