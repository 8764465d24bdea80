"""Preferences in a record: a chosen and a rejected answer, a ranking, or a labelled answer.

A record has them in ``meta``: ``chosen`` and ``rejected``, or ``ranking``, a list with the best
first, or ``completion`` and ``label``, true where the answer is wanted. Each answer is a string, or
chat messages whose last one is the answer (TRL's conversational format).
"""

from __future__ import annotations

from typing import Any

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
