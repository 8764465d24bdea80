"""Load the datasets that ``data.train`` and ``trainer.validation.data`` name as samples."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mmr1.config import Config, DataConfig
from mmr1.data.contents import contents, unread_columns
from mmr1.data.forms import read_row
from mmr1.data.forms.boxes import BoxTally
from mmr1.data.forms.columns import renamed
from mmr1.data.forms.form import Place
from mmr1.data.forms.options import lacks_options
from mmr1.data.quarantine import Quarantine
from mmr1.data.readers import media_folder, read_rows
from mmr1.data.readers.classes import NoSuchDatasetError
from mmr1.data.rows import FROM_BYTES, Rows, kinds_of, measured, open_rows, select
from mmr1.data.stores import Store, store_of
from mmr1.data.templates import PromptTemplate, apply_template, load_template
from mmr1.types import Sample


def load_samples(
    spec: str | Path,
    config: DataConfig | None = None,
    quarantine: Quarantine | None = None,
    say: Callable[[str], None] | None = None,
) -> Sequence[Sample]:
    """The samples of a dataset, in any known row format, with the prompt template applied.

    Those of large data stay on the disk until they are asked for, and an index beside the file
    tells where they are the next time.

    Args:
        spec: See :func:`mmr1.data.readers.read_rows`.
        config: ``media_root``, ``format``, ``prompt_template`` and ``max_bad_fraction`` count.
        quarantine: Collects dropped rows; by default as ``max_bad_fraction`` allows.
        say: Is told what was read: how many samples have media, and which columns nothing read.

    Raises:
        ValueError: The dataset is missing or empty, an id appears twice, or too many rows cannot be
            used. Names the file and the row.
    """
    config = config or DataConfig()
    quarantine = quarantine or Quarantine(config.max_bad_fraction)
    template = load_template(config.prompt_template) if config.prompt_template else None
    if store := store_of(spec, FROM_BYTES):
        rows = _open_large(spec, store, config, template, quarantine)
        if say is not None:
            say(contents(str(spec), rows.kinds(), rows.unread(), rows.optionless()))
        return rows
    samples: list[Sample] = []
    unread: dict[str, None] = {}
    places: dict[str, str] = {}
    total, boxes = 0, BoxTally()
    columns = config.columns
    with _gc_paused():
        for where, sample, row in _located(spec, config):
            total += 1
            boxes.add(sample)
            if isinstance(sample, ValueError):
                quarantine.drop(str(spec), where, str(sample))
                continue
            samples.append(apply_template(sample, template) if template else sample)
            places[sample.id] = where
            if say is not None:
                unread |= dict.fromkeys(unread_columns(row, sample, columns))
    if not total:
        raise ValueError(f"{spec} holds no records; check the path or make the dataset again")
    boxes.check(str(spec))
    quarantine.locate(str(spec), places.get)
    quarantine.read(str(spec), total)
    _check_ids(spec, samples)
    if say is not None:
        optionless = sum(map(lacks_options, samples))
        say(contents(str(spec), kinds_of(samples), unread, optionless))
    return samples


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Suspend garbage collection: rows make no cycles, and it would only walk over all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _open_large(
    spec: str | Path,
    store: Store,
    config: DataConfig,
    template: PromptTemplate | None,
    quarantine: Quarantine,
) -> Rows:
    sample_of = _reader(spec, config)
    columns = config.columns

    def read(row: Any, number: int) -> Sample:
        sample = sample_of(row, number)
        return apply_template(sample, template) if template else sample

    facts = {
        "format": _with_text(config.format_name),
        "columns": columns,
        "media_root": str(_media_root(spec, config).resolve()),
        "source": source_name(spec),
        "template": _with_text(config.prompt_template),
    }

    def unread(row: Any, sample: Sample) -> list[str]:
        return unread_columns(row, sample, columns)

    rows, total, dropped = open_rows(store, facts, read, unread)
    for where, reason in dropped:
        quarantine.drop(str(spec), where, reason)
    quarantine.locate(str(spec), rows.place_of)
    quarantine.read(str(spec), total)
    return rows


def read_samples(spec: str | Path, config: DataConfig) -> Iterator[tuple[str, Sample | ValueError]]:
    """Every row as a sample or as the error that makes it unusable, each with its location."""
    yield from ((where, sample) for where, sample, _ in _located(spec, config))


def _located(
    spec: str | Path, config: DataConfig
) -> Iterator[tuple[str, Sample | ValueError, Any]]:
    """``(location, sample or error, row)`` of every row."""
    sample_of = _reader(spec, config)
    for index, (where, row) in enumerate(read_rows(spec)):
        if isinstance(row, ValueError):
            yield where, row, None
            continue
        try:
            yield where, sample_of(row, index), row
        except ValueError as error:
            yield where, error, row


def _reader(spec: str | Path, config: DataConfig) -> Callable[[Any, int], Sample]:
    """Reads a row of a dataset, given with its number, as a sample. Raises ValueError."""
    root, source = _media_root(spec, config), source_name(spec)
    columns, form = config.columns, config.format_name  # once, not for every row

    def sample_of(row: Any, number: int) -> Sample:
        if not isinstance(row, dict):
            raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
        place = Place(root, source, number)
        if not columns:
            return read_row(row, place, form)
        as_easyr1 = renamed(row, columns)
        return read_row(as_easyr1, place, "easyr1", own={**as_easyr1, **row})

    return sample_of


def _with_text(name: str | None) -> str | None:
    """The text of a file; for a name in a Python file that name and the file's text."""
    if name is None:
        return None
    file = name.rpartition(":")[0] if ".py:" in name else name
    path = Path(file).expanduser()
    return f"{name}\n{path.read_text(encoding='utf-8')}" if path.is_file() else name


def _media_root(spec: str | Path, config: DataConfig) -> Path:
    return Path(config.media_root) if config.media_root else media_folder(spec)


def source_name(spec: str | Path) -> str:
    """The ``source`` of a dataset's samples: the name of its file or folder."""
    name, _, split = str(spec).partition("@")
    return f"{Path(name).stem}-{split}" if split else Path(name).stem


def load_mixture(
    config: DataConfig, quarantine: Quarantine | None = None
) -> tuple[dict[str, Sequence[Sample]], dict[str, float]]:
    """The training sources by name and their weights, as the sampler takes them.

    Raises:
        NoSuchDatasetError: A dataset is not there, or ``data.train`` is not set.
        ValueError: If :func:`load_samples` raises it.
    """
    if not config.train:
        raise NoSuchDatasetError("data.train is not set; name the training records")
    weights = config.train if isinstance(config.train, dict) else {config.train: 1.0}
    sources = {spec: load_samples(spec, config, quarantine, _say) for spec in weights}
    return sources, dict(weights)


def keep_fitting(
    spec: str,
    samples: Sequence[Sample],
    prompt_tokens: Callable[[Sample], int],
    limit: int,
    quarantine: Quarantine,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Sequence[Sample]:
    """The samples whose prompts have at most ``limit`` tokens, vision tokens included.

    Args:
        spec: The dataset that they were read from.
        samples: Samples of its rows that can be read.
        prompt_tokens: Length of a sample's prompt; raises ValueError if the header of a medium
            cannot be read.
        limit: Limit of a prompt, in tokens.
        quarantine: Has counted the rows, and collects the samples that are left out.
        facts: Facts that the lengths depend on beside the samples, as JSON values.
    """

    def lengths_of(block: list[Sample]) -> list[int]:
        return [_length(prompt_tokens, sample) for sample in block]

    lengths = measured(samples, "prompt lengths", facts, lengths_of)
    fits = (lengths != UNREADABLE) & (lengths <= limit)
    for index in np.flatnonzero(~fits).tolist():
        sample = samples[index]
        quarantine.drop(spec, sample.id, _why_not(prompt_tokens, sample, limit))
    quarantine.check(spec)
    return select(samples, np.flatnonzero(fits))


UNREADABLE = -1


def _length(prompt_tokens: Callable[[Sample], int], sample: Sample) -> int:
    try:
        return prompt_tokens(sample)
    except ValueError:
        return UNREADABLE


def _why_not(prompt_tokens: Callable[[Sample], int], sample: Sample, limit: int) -> str:
    try:
        length = prompt_tokens(sample)
    except ValueError as error:
        return str(error)
    return f"its prompt has {length} tokens and rollout.max_prompt_length is {limit}"


def _check_ids(spec: str | Path, samples: list[Sample]) -> None:
    ids: set[str] = set()
    for sample in samples:
        if sample.id in ids:
            raise ValueError(f"{spec}: the id '{sample.id}' appears twice; ids must be unique")
        ids.add(sample.id)


def load_held_out(config: Config, quarantine: Quarantine | None = None) -> Sequence[Sample]:
    """The samples of ``trainer.validation.data``; for commands that read ``eval``, the first
    ``eval.limit`` of them.

    Raises:
        ValueError: The key is not set, or the data cannot be used.
    """
    if config.eval_records is None:
        raise ValueError(
            "trainer.validation.data is not set; name the held-out records, "
            "trainer.validation.data=PATH"
        )
    limit = config.eval.limit if "eval" in config.sections else None
    return load_samples(config.eval_records, config.data, quarantine, _say)[:limit]


def _say(line: str) -> None:
    print(line, file=sys.stderr)
