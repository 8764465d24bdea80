"""From what a user names in ``data.train`` to samples ready for the sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmr1.config import Config, DataConfig
from mmr1.data.forms import Place, read_row
from mmr1.data.quarantine import Quarantine
from mmr1.data.readers import media_folder, read_rows
from mmr1.data.templates import apply_template, load_template
from mmr1.types import Sample


def load_samples(
    spec: str | Path,
    config: DataConfig | None = None,
    quarantine: Quarantine | None = None,
) -> list[Sample]:
    """All samples of a dataset in any known form, its prompt template applied.

    Args:
        spec: See :func:`mmr1.data.readers.read_rows`.
        config: ``media_root``, ``format``, ``template`` and ``max_bad_fraction``.
        quarantine: Where dropped rows go; by default none may be.

    Raises:
        ValueError: The dataset is missing or empty, holds an id twice, or holds more rows that
            cannot be used than allowed. Names the file and the row.
    """
    config = config or DataConfig()
    quarantine = quarantine or Quarantine(config.max_bad_fraction)
    template = load_template(config.prompt_template) if config.prompt_template else None
    samples: list[Sample] = []
    total = 0
    for where, found in read_samples(spec, config):
        total += 1
        if isinstance(found, ValueError):
            quarantine.drop(where, str(found))
        else:
            samples.append(apply_template(found, template) if template else found)
    if not total:
        raise ValueError(f"{spec} holds no records; check the path or make the dataset again")
    quarantine.check(total)
    _check_ids(spec, samples)
    return samples


def read_samples(spec: str | Path, config: DataConfig) -> Iterator[tuple[str, Sample | ValueError]]:
    """Every row as a sample, or as the reason why it is none, with where it stands."""
    root = Path(config.media_root) if config.media_root else media_folder(spec)
    source = source_name(spec)
    for index, (where, row) in enumerate(read_rows(spec)):
        if isinstance(row, ValueError):
            yield where, row
            continue
        try:
            yield where, _sample(row, Place(root, source, index), config.format)
        except ValueError as error:
            yield where, error


def _sample(row: Any, place: Place, form: str | None) -> Sample:
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
    return read_row(row, place, form)


def source_name(spec: str | Path) -> str:
    """A short name for the samples of a dataset: that of its file or folder."""
    name, _, split = str(spec).partition("@")
    return f"{Path(name).stem}-{split}" if split else Path(name).stem


def load_mixture(
    config: DataConfig, quarantine: Quarantine | None = None
) -> tuple[dict[str, list[Sample]], dict[str, float]]:
    """The training sources by name and their weights, as the sampler takes them.

    Raises:
        ValueError: As :func:`load_samples`; or ``data.train`` is not set.
    """
    if not config.train:
        raise ValueError("data.train is not set; name the training records")
    weights = config.train if isinstance(config.train, dict) else {config.train: 1.0}
    sources = {spec: load_samples(spec, config, quarantine) for spec in weights}
    return sources, dict(weights)


def keep_fitting(
    samples: list[Sample],
    prompt_tokens: Callable[[Sample], int],
    limit: int,
    quarantine: Quarantine,
) -> list[Sample]:
    """The samples whose prompts, vision tokens included, are not longer than ``limit``.

    Args:
        samples: All of them.
        prompt_tokens: Length of a sample's prompt; raises ValueError when its media have no
            readable header.
        limit: In tokens.
        quarantine: Names the others.
    """
    kept = []
    for sample in samples:
        try:
            length = prompt_tokens(sample)
        except ValueError as error:
            quarantine.drop(sample.id, str(error))
            continue
        if length <= limit:
            kept.append(sample)
        else:
            quarantine.drop(
                sample.id,
                f"its prompt has {length} tokens and rollout.max_model_len leaves room for {limit}",
            )
    quarantine.check(len(samples))
    return kept


def _check_ids(spec: str | Path, samples: list[Sample]) -> None:
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise ValueError(f"{spec}: the id '{sample.id}' appears twice; ids must be unique")
        seen.add(sample.id)


def load_held_out(config: Config) -> list[Sample]:
    """The samples of ``data.eval``, the first ``eval.limit`` of them.

    Raises:
        ValueError: The key is not set, or the data are not sound.
    """
    if config.data.eval is None:
        raise ValueError("data.eval is not set; name the held-out records, data.eval=PATH")
    return load_samples(config.data.eval, config.data)[: config.eval.limit]
