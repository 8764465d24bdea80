"""Rankings from completions that a reward function has scored: what a reward model learns from.

The completions are the rollouts of a run, or those that were sampled for the records of a dataset.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets_prep.completions import Name, Row, completions_of, text_of, value_of, write_sampled
from datasets_prep.outputs import check_new
from mmr1.config import DataConfig
from mmr1.data.record import write_records
from mmr1.data.sources import load_mixture, load_samples
from mmr1.types import ContentPart, MediaRef, Sample


def rank_rollouts(run: Path, output: Path, data: DataConfig, ranked_by: str) -> int:
    """Write the rankings that a run's rollouts give; returns their number.

    A ranking holds one completion per value of a reward function, the best first. Prompts whose
    completions all have one value give none. The records have no prompt template applied: a run
    that reads them applies its own. Their media are linked into ``media`` beside ``output``.

    Args:
        run: The output directory of the run.
        output: The JSON Lines file.
        data: Data of the run.
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
    """Write the records of a dataset as ``rank_rollouts`` does, with their media beside them."""
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


Valued = list[tuple[str, float]]


def rank_completions(
    records: Path, completions: Path, output: Path, function: str
) -> tuple[int, int, int]:
    """Write a record for each prompt whose completions differ in value.

    Its ranking has one completion per value, the best first. Completions without a valid reward
    are left out.

    Args:
        records: The record file that was sampled from, or a folder of them.
        completions: A file of completions, or a folder of them.
        output: The record file to write.
        function: The reward function that ranks.

    Returns:
        How many records were written, from how many of the records, and the number of records.

    Raises:
        ValueError: The output exists, a file cannot be read, a completion was not scored by the
            function, or nothing can be ranked.
    """
    check_new(output)
    valued: dict[Name, Valued] = {}
    for place, name, completion in completions_of(completions):
        value = value_of(completion, function, place)
        if value is not None:
            valued.setdefault(name, []).append((text_of(completion), value))
    return write_sampled(
        records, output, valued, _ranked,
        nothing=f"no prompt of {completions} has completions of different '{function}' and is a "
        f"record of {records}: there is nothing to rank; sample more completions of each, or check "
        "that these records, with these answers, were sampled from",
    )  # fmt: skip


def _ranked(row: Row, valued: Sequence[tuple[str, float]]) -> Iterator[Row]:
    texts = best_first(valued)
    if len(texts) > 1:
        meta: dict[str, Any] = dict(row.get("meta") or {})
        yield {**row, "meta": {**meta, "ranking": texts}}
