"""What a converter is, and the names of those there are."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets_prep import converters
from mmr1.data.forms import Place, Row, read_row
from mmr1.data.readers import Located, read_rows
from mmr1.registry import Registry
from mmr1.types import Sample


@dataclass(frozen=True, slots=True)
class Changed:
    """A sample that is not quite what the row said, and in which way."""

    sample: Sample
    change: str


Convert = Callable[[Row, Place], Iterable[Sample | Changed]]


@dataclass(frozen=True)
class Converter:
    """How to read one dataset.

    Attributes:
        name: What ``mmr1-data convert`` calls it.
        description: One line for ``mmr1-data list``.
        source: Where the dataset comes from.
        licence: What its source states, restrictions included.
        files: Patterns of the annotation files below the input folder.
        convert: One row to its samples; raises ValueError for a row that cannot be used.
        rows: How an annotation file is read.
    """

    name: str
    description: str
    source: str
    licence: str
    files: tuple[str, ...]
    convert: Convert
    rows: Callable[[Path], Iterator[Located]] = read_rows

    def find(self, source: Path) -> list[Path]:
        """The annotation files of an input file or folder.

        Raises:
            ValueError: There are none.
        """
        if source.is_file():
            return [source]
        found = sorted({p for pattern in self.files for p in source.glob(f"**/{pattern}")})
        if not found:
            raise ValueError(
                f"{source} holds none of the annotation files of '{self.name}' "
                f"({', '.join(self.files)}); name the file itself with --input"
            )
        return found


def of_form(form: str, task: str | None = None) -> Convert:
    """A converter's ``convert`` for rows of a known form, with the task type of the dataset."""

    def convert(row: Row, place: Place) -> Iterator[Sample]:
        yield retasked(read_row(row, place, form), task)

    return convert


def retasked(sample: Sample, task: str | None, answer: object = None) -> Sample:
    """The sample with another task type, and another answer where one is given."""
    return Sample(
        sample.id,
        sample.messages,
        sample.answer if answer is None else answer,
        task or sample.task,
        sample.source,
        sample.meta,
    )


ROW_FILES = ("*.jsonl", "*.json", "*.parquet")

CONVERTERS = Registry(
    "dataset to convert",
    {
        module.name: f"{converters.__name__}.{module.name}:CONVERTER"
        for module in pkgutil.iter_modules(converters.__path__)
        if f"{converters.__name__}.{module.name}" != __name__  # this file is beside them
    },
    group="mmr1.converters",
)
