"""Rows of any dataset: files of many kinds, folders of them, or a Hugging Face dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mmr1.data.readers.classes import Located, NoSuchDatasetError
from mmr1.data.readers.hub import hub_rows, is_saved
from mmr1.data.readers.json_files import json_lines, json_rows
from mmr1.data.readers.splits import files_of_split
from mmr1.data.readers.tables import delimited_rows, parquet_rows

_READERS: dict[str, Callable[[Path], Iterator[Located]]] = {
    ".jsonl": json_lines,
    ".jsonl.gz": json_lines,
    ".json": json_rows,
    ".json.gz": json_rows,
    ".parquet": parquet_rows,
    ".csv": delimited_rows,
    ".tsv": delimited_rows,
}
KINDS = tuple(_READERS)
"""Suffixes of the files that can be read."""

_SAVE_AS = {
    ".tar": "; unpack it and list its rows in a metadata.jsonl",
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods", ".numbers"), "; save it as CSV (UTF-8) in the spreadsheet program"
    ),
}

# Beside the rows of a prepared dataset, and no rows themselves.
_NOT_ROWS = ("quarantine.jsonl", "manifest.json", "dataset_infos.json")


def read_rows(spec: str | Path) -> Iterator[Located]:
    """The raw rows of a file, a folder or a Hugging Face dataset, each with its location.

    Args:
        spec: A file of one of the :data:`KINDS`; a folder of such files, written by ``mmr1-data``,
            by ``datasets`` or by hand; or a dataset's name. ``name@split`` picks a split (``train``
            by default).

    Raises:
        NoSuchDatasetError: If no dataset has the name.
        ValueError: If the split does not exist, or the file as a whole is broken.
    """
    if (files := files_of(spec)) is not None:
        for path in files:
            yield from _READERS[str(kind_of(path))](path)
        return
    name, _, split = str(spec).partition("@")
    yield from hub_rows(name, split or None)


def files_of(spec: str | Path) -> list[Path] | None:
    """The files that hold the rows of a dataset; None if ``datasets`` reads it.

    Raises:
        NoSuchDatasetError: If no dataset has the name.
        ValueError: If the split does not exist.
    """
    if kind_of(spec) is not None and not Path(spec).is_dir():
        path = Path(spec)
        if not path.is_file():
            raise NoSuchDatasetError(
                f"{path}: no such file; check the path (data.train, trainer.validation.data)"
            )
        return [path]
    name, _, split = str(spec).partition("@")
    folder = Path(name)
    if folder.is_dir() and not is_saved(folder) and (files := row_files(folder)):
        return files_of_split(files, folder, split or None, f"as {name}@SPLIT", "train")
    _refuse_missing(name, split)
    return None


def kind_of(spec: str | Path) -> str | None:
    """The suffix of a file that can be read, or None for a folder or a name."""
    name = Path(spec).name.lower()
    return next((kind for kind in KINDS if name.endswith(kind) and name != kind), None)


def row_files(folder: Path) -> list[Path]:
    """The files with rows directly in a folder, or below it if there are none.

    Raises:
        ValueError: If the files are of several kinds, and may hold the same rows twice.
    """
    files = _row_files(folder.glob("*")) or _row_files(folder.glob("**/*"))
    kinds = sorted({str(kind_of(path)) for path in files})
    if len(kinds) > 1:
        raise ValueError(
            f"{folder} holds {' and '.join(kinds)} files ({files[0].name}, …), which may be the "
            "same rows twice; name one file, or keep one kind in the folder"
        )
    return files


def _row_files(paths: Iterator[Path]) -> list[Path]:
    return sorted(
        path
        for path in paths
        if kind_of(path) is not None
        and path.is_file()
        and path.name not in _NOT_ROWS
        and not path.name.startswith(".")
        and not path.name.endswith(".frames.json")
    )


def check_dataset(spec: str, key: str) -> None:
    """Check a dataset on this machine; a name on the hub is checked when it is read.

    Raises:
        NoSuchDatasetError: If the file or folder is missing; the message names the configuration's
            ``key``.
        ValueError: If the file is not one of rows.
    """
    if kind_of(spec) is not None and not Path(spec).is_dir():
        if not Path(spec).is_file():
            raise NoSuchDatasetError(f"{spec}: no such file; check the path ({key})")
        return
    name, _, split = spec.partition("@")
    _refuse_missing(name, split, key)


def _refuse_missing(name: str, split: str, key: str | None = None) -> None:
    """Refuse what cannot be a name on the hub: a path without a folder, or a file misnamed."""
    path = Path(name)
    of_key = f" ({key})" if key else ""
    if path.is_dir():
        return
    if path.is_file():
        reason = (
            f"a file has no split '{split}'; name the file of that split"
            if kind_of(path) is not None
            else f"is not a file of rows; known are {', '.join(KINDS)}"
            + _SAVE_AS.get(path.suffix, "")
        )
        raise ValueError(f"{path}: {reason}{of_key}")
    meant = sorted(p for p in path.parent.glob(f"{path.name}.*") if kind_of(p) is not None)
    if meant:
        shown = " or ".join(str(p) for p in meant[:3])
        raise NoSuchDatasetError(f"{path}: no such file or folder; did you mean {shown}?{of_key}")
    if name.startswith((".", "/", "~")):
        raise NoSuchDatasetError(f"{path}: no such file or folder; check the path{of_key}")


def media_folder(spec: str | Path) -> Path:
    """The folder that a dataset's media paths are relative to by default.

    It is the folder that was named, or that of the file; in a Hugging Face ImageFolder with splits
    that of the split, beside whose pictures ``metadata.jsonl`` lies.
    """
    path = Path(spec)
    if not path.exists():
        path = Path(str(spec).partition("@")[0])
    if not path.is_dir() or is_saved(path):
        return path if path.is_dir() else path.parent
    files = files_of(spec) or []
    folders = {file.parent for file in files if file.stem == "metadata"}
    return folders.pop() if len(files) == len(folders) == 1 else path
