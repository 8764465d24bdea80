"""A folder of pictures per class (an ImageFolder): the folder's name is the class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.media_kinds import IMAGE_SUFFIXES
from mmr1.data.readers.classes import Located
from mmr1.types import Sample

LISTED = 26
"""Classes that a question lists; it would be longer than most pictures with more."""


def _rows(folder: Path) -> Iterator[Located]:
    """A row per picture, by class and by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the one that holds a folder per class")
    if described := sorted(folder.glob("**/metadata.*")):
        raise ValueError(f"{described[0]} describes the pictures; mmr1 reads such a folder itself")
    classes = [path for path in _inside(folder) if path.is_dir()]
    if len(classes) < 2:
        raise ValueError(f"{folder} holds {len(classes)} folder(s); a folder per class is needed")
    names = [path.name for path in classes]
    for path in _inside(folder):
        for file in _inside(path) if path.is_dir() else [path]:
            yield str(file), _row(file, folder, names)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _row(file: Path, folder: Path, names: list[str]) -> Row | ValueError:
    if file.is_dir():
        return ValueError("a folder in the folder of a class; name one split with --split")
    if file.parent == folder:
        return ValueError("it lies in no folder of a class")
    if file.suffix[1:].lower() not in IMAGE_SUFFIXES:
        return ValueError(f"'{file.suffix}' is not a picture's suffix")
    return {"image": str(file.relative_to(folder)), "label": file.parent.name, "classes": names}


def _convert(row: Row, place: Place) -> Iterator[Sample]:
    question, classes = "Which class does the picture show", row["classes"]
    if len(classes) <= LISTED:
        question += f": {', '.join(classes[:-1])} or {classes[-1]}"
    yield assemble(
        row, place, [("user", f"{question}?")], images=row["image"], answer=row["label"],
        task="exact", used=tuple(row), untagged=True,
    )  # fmt: skip


IMAGEFOLDER = Converter(
    name="imagefolder",
    description="a folder of pictures per class: the answer is the folder's name",
    source="yours",
    licence="that of the dataset",
    files=(),
    convert=_convert,
    rows=_rows,
)
