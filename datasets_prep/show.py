"""The output of ``mmr1-data show``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from datasets_prep.converters import CONVERTERS
from datasets_prep.converters.base import Converter
from datasets_prep.converters.rows import converter_of
from datasets_prep.generators import GENERATORS, Generator
from mmr1.config import DataConfig
from mmr1.data.forms import FORMS
from mmr1.data.readers import media_folder
from mmr1.data.record import encode
from mmr1.data.sources import read_samples
from mmr1.registry import suggest
from mmr1.types import Sample


def describe(name: str, count: int) -> Iterator[str]:
    """Lines about a converter or generator, or the first records of a file.

    Raises:
        ValueError: If the file, converter or generator does not exist.
    """
    if Path(name).exists():
        yield from _records(name, count)
    elif name in CONVERTERS.names() or name in FORMS.names():
        yield from _facts(converter_of(name))
    elif name in GENERATORS.names():
        yield from _facts(GENERATORS.load(name))
    else:
        names = {**CONVERTERS.names(), **FORMS.names(), **GENERATORS.names()}
        raise ValueError(
            f"'{name}' is neither a file nor a dataset{suggest(name, names)}; 'mmr1-data list' "
            "names all"
        )


def _facts(dataset: Converter | Generator) -> Iterator[str]:
    yield f"{dataset.name}: {dataset.description}"
    yield f"  source:  {dataset.source}"
    yield f"  licence: {dataset.licence}"
    if isinstance(dataset, Converter):
        yield f"  files:   {', '.join(dataset.files) or 'those of the folder'}"
        yield f"  mmr1-data convert {dataset.name} --input FOLDER --output FOLDER"
    else:
        yield f"  mmr1-data make {dataset.name} --output FOLDER"


def _records(name: str, count: int) -> Iterator[str]:
    """Rows of any known format as canonical records."""
    folder = media_folder(name)
    for where, sample in islice(read_samples(name, DataConfig()), count):
        yield f"{where}:"
        if isinstance(sample, Sample):
            yield json.dumps(_row(sample, folder), indent=2, ensure_ascii=False)
        else:
            yield f"  cannot be used: {sample}"


def _row(sample: Sample, folder: Path) -> dict[str, Any]:
    """The record as a row; media paths are relative to the folder where they lie in it."""
    try:
        return encode(sample, folder)
    except ValueError:
        row = encode(sample, Path("/"))
    for message in row["messages"]:
        for item in message["content"]:
            if "path" in item:
                item["path"] = f"/{item['path']}"
    return row
