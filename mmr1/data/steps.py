"""Step labels in a record, for process reward models.

A record has them in ``meta``, as TRL's stepwise data: ``completions``, the texts of the steps in
order, and ``labels``, for each step true, false or a number from 0 (wrong) to 1 (right).
"""

from __future__ import annotations

import math
from typing import Any

from mmr1.types import Sample


def labelled_steps(sample: Sample) -> tuple[tuple[str, float], ...]:
    """The steps of a sample's answer, each with its label from 0 to 1.

    Raises:
        ValueError: The sample has none, or steps and labels do not fit each other.
    """
    steps, labels = sample.meta.get("completions"), sample.meta.get("labels")
    if not (isinstance(steps, list) and isinstance(labels, list) and steps):
        raise ValueError(
            f"sample '{sample.id}' has no labelled steps; give it 'completions', the texts of the "
            "steps, and 'labels', one for each, in meta"
        )
    if len(steps) != len(labels):
        raise ValueError(
            f"sample '{sample.id}' has {len(steps)} steps in meta.completions and {len(labels)} in "
            "meta.labels; give each step one label"
        )
    return tuple(
        (_text(sample, step), _label(sample, label))
        for step, label in zip(steps, labels, strict=True)
    )


def _text(sample: Sample, step: Any) -> str:
    if not isinstance(step, str) or not step.strip():
        raise ValueError(
            f"sample '{sample.id}': meta.completions holds {str(step)[:40]!r}, not a step's text"
        )
    return step.strip()


def _label(sample: Sample, label: Any) -> float:
    number = float(label) if isinstance(label, bool | int | float) else math.nan
    if not 0 <= number <= 1:
        raise ValueError(
            f"sample '{sample.id}': meta.labels holds {str(label)[:40]!r}; a label is true, false, "
            "or a number from 0 to 1"
        )
    return number
