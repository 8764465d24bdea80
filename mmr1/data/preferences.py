"""Answers in a record: preferences, rankings, labelled answers and labelled steps.

A record has them in ``meta``: ``chosen`` and ``rejected``, or ``ranking``, a list with the best
first, or ``completion`` and ``label``, true where the answer is wanted. Each answer is a string, or
chat messages whose last one is the answer (TRL's conversational format).
Step labels, for process reward models, are as TRL's stepwise data: ``completions``, the texts of
the steps in order, and ``labels``, for each step true, false or a number from 0 (wrong) to 1
(right). Rankings can also be made from the rollouts of a run.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmr1.config import DataConfig
from mmr1.data.record import write_records
from mmr1.data.sources import load_mixture, load_samples
from mmr1.types import ContentPart, MediaRef, Sample

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


def write_rankings(run: Path, output: Path, data: DataConfig, ranked_by: str) -> int:
    """Write the rankings that a run's rollouts give; returns their number.

    A ranking holds one completion per value of a reward function, the best first. Prompts whose
    completions all have one value give none. The records have no prompt template applied: a run
    that reads them applies its own. Their media are linked into ``media`` beside ``output``.

    Args:
        run: The output directory of the run.
        output: The JSON Lines file.
        data: That of the run.
        ranked_by: The reward function. It should be a verifier, not the reward model itself.

    Raises:
        ValueError: No prompt gives a ranking.
    """
    sources, _ = load_mixture(data.changed(prompt_template=None))
    samples = {sample.id: sample for source in sources.values() for sample in source}
    records = list(_rankings(run, samples, ranked_by))
    if not records:
        raise ValueError(
            f"{run}: no prompt has completions of different '{ranked_by}', so there is nothing to "
            "rank; raise rollout.n or the temperature, or choose another iterative_grpo.ranked_by"
        )
    _write(output, records)
    return len(records)


def copy_rankings(spec: str, output: Path, data: DataConfig) -> None:
    """Write the records of a dataset as ``write_rankings`` does, with their media beside them."""
    plain = data.changed(prompt_template=None)
    _write(output, load_samples(spec, plain))


def _write(output: Path, records: Sequence[Sample]) -> None:
    media = output.parent / "media"
    media.mkdir(parents=True, exist_ok=True)
    write_records(output, (_beside(record, media) for record in records))


def _rankings(run: Path, samples: Mapping[str, Sample], ranked_by: str) -> Iterator[Sample]:
    """The samples with rewards that differ, each with its completions as ``ranking``."""
    for path in sorted((run / "rollouts").glob("step_*.jsonl")):
        # Not str.splitlines: it sees line ends inside of texts, such as U+2028.
        for row in map(json.loads, path.read_text().split("\n")[:-1]):
            best_first = ranked(row["completions"], ranked_by)
            if len(best_first) > 1:
                sample = samples[row["id"]]
                meta = {**sample.meta, "ranking": best_first}
                yield replace(sample, id=f"{sample.id}-{row['step']}", meta=meta)


def ranked(completions: Sequence[Mapping[str, Any]], ranked_by: str) -> list[str]:
    """The texts of a group's completions, the best first; those without a value are left out."""
    valued = [(c["text"], c["components"].get(ranked_by)) for c in completions]
    return best_first((text, value) for text, value in valued if value is not None)


def best_first(valued: Iterable[tuple[str, float]]) -> list[str]:
    """One text per value, the highest first; no text twice."""
    by_value: dict[float, str] = {}
    for text, value in valued:
        if text and text not in by_value.values():
            by_value.setdefault(value, text)
    return [by_value[value] for value in sorted(by_value, reverse=True)]


def _beside(sample: Sample, folder: Path) -> Sample:
    """The sample with its media files in ``folder``: records name media beside them."""

    def part_of(part: ContentPart) -> ContentPart:
        if not isinstance(part, MediaRef) or part.path is None:
            return part
        own = folder / f"{part.digest()[:32]}{part.path.suffix}"
        if not own.exists():
            _link(part.path.resolve(), own)
        return replace(part, path=own)

    messages = tuple(replace(m, parts=tuple(map(part_of, m.parts))) for m in sample.messages)
    return replace(sample, messages=messages)


def _link(file: Path, own: Path) -> None:
    """Make a hard link, or a copy where the two are on different file systems."""
    try:
        os.link(file, own)
    except OSError:
        shutil.copyfile(file, own)


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
