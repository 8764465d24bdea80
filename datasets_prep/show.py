"""What ``mmr1-data show`` says of a dataset or a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from datasets_prep.converters.base import CONVERTERS, Converter
from datasets_prep.generators import GENERATORS, Generator
from mmr1.config import DataConfig
from mmr1.data.record import encode
from mmr1.data.sources import read_samples
from mmr1.registry import suggest
from mmr1.types import Sample


def describe(name: str, count: int) -> Iterator[str]:
    """Lines about a converter or generator, or the first records of a file.

    Raises:
        ValueError: It is none of them.
    """
    if Path(name).exists():
        yield from _records(name, count)
    elif name in CONVERTERS.names():
        yield from _facts(CONVERTERS.load(name))
    elif name in GENERATORS.names():
        yield from _facts(GENERATORS.load(name))
    else:
        known = {**CONVERTERS.names(), **GENERATORS.names()}
        raise ValueError(
            f"'{name}' is no file and no dataset{suggest(name, known)}; 'mmr1-data list' names all"
        )


def _facts(what: Converter | Generator) -> Iterator[str]:
    yield f"{what.name}: {what.description}"
    yield f"  source:  {what.source}"
    yield f"  licence: {what.licence}"
    if isinstance(what, Converter):
        yield f"  files:   {', '.join(what.files)}"
        yield f"  mmr1-data convert {what.name} --input FOLDER --output FOLDER"
    else:
        yield f"  mmr1-data make {what.name} --output FOLDER"


def _records(name: str, count: int) -> Iterator[str]:
    """Rows of any known form as the records that training would see."""
    for where, found in islice(read_samples(name, DataConfig()), count):
        yield f"{where}:"
        if isinstance(found, Sample):
            yield json.dumps(encode(found, Path("/")), indent=2, ensure_ascii=False)
        else:
            yield f"  cannot be used: {found}"
