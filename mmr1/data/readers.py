"""Rows of any dataset on disk: JSON Lines, JSON, parquet, or a Hugging Face dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.data.record import parse_json, read_lines

_SUFFIXES = (".jsonl", ".json", ".parquet")

Located = tuple[str, Any]
"""The location of a row, for messages, and the row or the error of reading it."""


def read_rows(spec: str | Path) -> Iterator[Located]:
    """The raw rows of a file, a folder or a Hugging Face dataset, each with its location.

    Args:
        spec: A ``.jsonl``, ``.json`` or ``.parquet`` file; a folder saved by ``datasets``; or a
            dataset's name. ``name@split`` picks a split (``train`` by default).

    Raises:
        ValueError: There is no such dataset, or the file as a whole is broken.
    """
    path = Path(spec)
    readers = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}
    if path.suffix in readers:
        if not path.is_file():
            raise ValueError(f"{path}: no such file; check the path (data.train, data.eval)")
        return readers[path.suffix](path)
    return _hub(str(spec))


def check_dataset(spec: str, key: str) -> None:
    """Check a dataset on this machine; a name on the hub is checked when it is read.

    Raises:
        ValueError: There is no such file or folder; names the key of the configuration.
    """
    is_file = Path(spec).suffix in _SUFFIXES
    path = Path(spec if is_file else spec.partition("@")[0])
    looks_local = is_file or spec.startswith((".", "/", "~"))
    if looks_local and not (path.is_file() if is_file else path.exists()):
        kind = "file" if is_file else "file or folder"
        raise ValueError(f"{path}: no such {kind}; check the path ({key})")


def media_folder(spec: str | Path) -> Path:
    """The folder that a dataset's media paths are relative to by default."""
    path = Path(str(spec).partition("@")[0])
    return path if path.is_dir() else path.parent


def _json_lines(path: Path) -> Iterator[Located]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            yield where, parse_json(line)
        except ValueError as error:
            yield where, error


def _json(path: Path) -> Iterator[Located]:
    """An array of rows, an object of rows by id, or one row."""
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if isinstance(content, list):
        for number, row in enumerate(content):
            yield f"{path}[{number}]", row
    elif (
        isinstance(content, dict) and content and all(isinstance(v, dict) for v in content.values())
    ):
        for name, row in content.items():
            yield f"{path}[{name!r}]", {"id": name, **row}
    else:
        yield str(path), content


def _parquet(path: Path) -> Iterator[Located]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        number = 0
        for batch in table.iter_batches(batch_size=64):
            for row in batch.to_pylist():
                yield f"{path}[{number}]", row
                number += 1
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a valid parquet file: {error}") from error


def _hub(spec: str) -> Iterator[Located]:
    """A Hugging Face dataset on disk or by name, with its images still encoded."""
    import datasets

    name, _, split = spec.partition("@")
    split = split or "train"
    try:
        if (Path(name) / "state.json").is_file() or (Path(name) / "dataset_dict.json").is_file():
            dataset: Any = datasets.load_from_disk(name)
            dataset = dataset[split] if isinstance(dataset, datasets.DatasetDict) else dataset
        else:
            dataset = datasets.load_dataset(name, split=split)
    except Exception as error:  # datasets raises its own, its loaders' and the network's errors
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"'{spec}' is no file (.jsonl, .json, .parquet) and no dataset: {reason}"
        ) from error
    for column, feature in dataset.features.items():
        if (encoded := _undecoded(feature, datasets)) is not None:
            dataset = dataset.cast_column(column, encoded)
    for number, row in enumerate(dataset):
        yield f"{spec}[{number}]", row


def _undecoded(feature: Any, datasets: Any) -> Any:
    """The same feature without image decoding, or None if it contains no images."""
    if isinstance(feature, datasets.Image):
        return datasets.Image(decode=False)
    inner = getattr(feature, "feature", None)
    if isinstance(inner, datasets.Image):
        return type(feature)(datasets.Image(decode=False))
    return None
