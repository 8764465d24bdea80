"""Find and read the record files of a prepared dataset."""

from __future__ import annotations

from pathlib import Path

from mmr1.data.record import read_records
from mmr1.types import Sample

_NOT_RECORDS = {"quarantine.jsonl"}


def record_files(path: Path) -> list[Path]:
    """The file itself, or every record file of a folder.

    Raises:
        ValueError: There is none.
    """
    if path.is_file():
        return [path]
    files = sorted(p for p in path.glob("*.jsonl") if p.name not in _NOT_RECORDS)
    if not files:
        raise ValueError(f"{path} holds no record file (.jsonl)")
    return files


def load_all(path: Path) -> list[Sample]:
    """The samples of a file or of all files of a folder. Raises what ``read_records`` raises."""
    return [sample for file in record_files(path) for sample in read_records(file)]
