"""Read the answers of a record: preferences, rankings, labelled answers and labelled steps.

A record has them in ``meta``: ``chosen`` and ``rejected``, or ``ranking``, a list with the best
first, or ``completion`` and ``label``, true where the answer is wanted. Each answer is a string, or
chat messages whose last one is the answer (TRL's conversational format).
Step labels, for process reward models, are as TRL's stepwise data: ``completions``, the texts of
the steps in order, and ``labels``, for each step true, false or a number from 0 (wrong) to 1
(right).
"""

from __future__ import annotations

import math
from typing import Any

from mmr1.trainer.inputs import Inputs
from mmr1.types import Sample

_HOW = "give it 'chosen' and 'rejected' (or 'ranking', best first)"


def ranking_of(sample: Sample, pairs_only: bool = False) -> tuple[str, ...]:
    """The answers of a sample, the best first: two for a pair, more for a ranking.

    Raises:
        ValueError: The sample has fewer than two distinct answers, or more than two with
            ``pairs_only``.
    """
    meta = sample.meta
    if "ranking" in meta:
        ranking = meta["ranking"]
        answers = (
            [_text(sample, "ranking", a) for a in ranking] if isinstance(ranking, list) else []
        )
    elif "chosen" in meta and "rejected" in meta:
        answers = [_text(sample, key, meta[key]) for key in ("chosen", "rejected")]
    else:
        raise ValueError(f"sample '{sample.id}' has no preference pair; {_HOW} in meta")
    if len(answers) < 2 or len(set(answers)) < len(answers):
        raise ValueError(
            f"sample '{sample.id}' prefers nothing: its {len(answers)} answers must be two or more "
            f"that differ; {_HOW} in meta, or drop the row"
        )
    if pairs_only and len(answers) > 2:
        raise ValueError(
            f"sample '{sample.id}' ranks {len(answers)} answers and DPO learns from pairs; give it "
            "'chosen' and 'rejected', or train a reward model (mmr1 rm) on the rankings"
        )
    return tuple(answers)


def labelled_answers(sample: Sample) -> tuple[tuple[str, bool], ...]:
    """The answers of a sample for KTO, each with whether it is wanted.

    A pair counts as a wanted and an unwanted answer.

    Raises:
        ValueError: The sample has neither ``completion`` with ``label`` nor a pair.
    """
    meta = sample.meta
    if not meta.keys() & {"completion", "label", "chosen", "rejected", "ranking"}:
        raise ValueError(
            f"sample '{sample.id}' has no answer for KTO; give it 'completion' and 'label', or "
            "'chosen' and 'rejected', in meta"
        )
    if "completion" not in meta and "label" not in meta:
        chosen, rejected = ranking_of(sample, pairs_only=True)
        return (chosen, True), (rejected, False)
    label = meta.get("label")
    if not isinstance(label, bool):
        raise ValueError(
            f"sample '{sample.id}': meta.label is {label!r}; make it true where the answer in "
            "meta.completion is wanted, and false where it is not"
        )
    return ((_text(sample, "completion", meta.get("completion")), label),)


def _text(sample: Sample, key: str, value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"sample '{sample.id}': meta.{key} holds {str(value)[:40]!r}, not an answer's text"
        )
    return value


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
        (_step_text(sample, step), _step_label(sample, label))
        for step, label in zip(steps, labels, strict=True)
    )


def _step_text(sample: Sample, step: Any) -> str:
    if not isinstance(step, str) or not step.strip():
        raise ValueError(
            f"sample '{sample.id}': meta.completions holds {str(step)[:40]!r}, not a step's text"
        )
    return step.strip()


def _step_label(sample: Sample, label: Any) -> float:
    number = float(label) if isinstance(label, bool | int | float) else math.nan
    if not 0 <= number <= 1:
        raise ValueError(
            f"sample '{sample.id}': meta.labels holds {str(label)[:40]!r}; a label is true, false, "
            "or a number from 0 to 1"
        )
    return number


def distinct_samples(records: Inputs, seed: int, count: int) -> list[Sample]:
    """Return the distinct samples among the first ``count`` that a run draws."""
    drawn = records.loader(seed).draw(count)
    return list({(dataset, sample.id): sample for dataset, sample in drawn}.values())
