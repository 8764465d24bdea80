"""The ``Converter``: facts about one dataset, and how to turn its rows into samples.

``datasets_prep/conversion.py`` runs a converter over a whole dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mmr1.data.forms.form import CHANGED, Place, Row
from mmr1.data.readers import KINDS, read_rows
from mmr1.data.readers.classes import Located
from mmr1.data.readers.hub import is_saved
from mmr1.data.readers.splits import OTHERS, files_of_split, split_of
from mmr1.types import Sample


def noted(change: str) -> dict[str, str]:
    """The entry of ``meta`` for a change, which the manifest counts; nothing for an empty one."""
    return {CHANGED: change} if change else {}


Convert = Callable[[Row, Place], Iterable[Sample]]


@dataclass(frozen=True)
class Converter:
    """A converter of one dataset.

    Attributes:
        name: Its name in ``mmr1-data convert``.
        description: One line for ``mmr1-data list``.
        source: Where the dataset comes from.
        licence: Licence that the source states, with its restrictions.
        files: Glob patterns of the annotation files under the input folder; none where the rows are
            those of the folder itself.
        convert: ``(row, place) -> samples``; raises ValueError for a row that cannot be used.
        rows: Reads the rows of an annotation file.
    """

    name: str
    description: str
    source: str
    licence: str
    files: tuple[str, ...]
    convert: Convert
    rows: Callable[[Path], Iterator[Located]] = read_rows

    def find(self, source: Path, split: str | None = None) -> tuple[list[Path], str | None]:
        """The annotation files of an input file or folder, and the split to take of their rows.

        Args:
            source: The file or folder.
            split: Split of a folder with several; of the rows if no file names a split.

        Raises:
            ValueError: If there are no annotation files, or they are of several splits and none was
                named.
        """
        if source.is_file():
            return [source], split
        if not self.files:
            return [source / (split or "")], None
        if is_saved(source):
            return [source.with_name(f"{source.name}@{split}") if split else source], None
        files = sorted({p for pattern in self.files for p in source.glob(f"**/{pattern}")})
        if not files:
            raise ValueError(
                f"{source} holds none of the annotation files of '{self.name}' "
                f"({', '.join(self.files)}); name the file itself with --input"
            )
        if all(split_of(path, source) == OTHERS for path in files):
            return files, split
        how = "as --split NAME, or a file as --input"
        return files_of_split(files, source, split, how), None


def with_task(sample: Sample, task: str | None) -> Sample:
    """The sample with this task type; None leaves what it has."""
    return sample if task in (None, sample.task) else replace(sample, task=task)


ROW_FILES = tuple(f"*{kind}" for kind in KINDS)
