"""Rows of parquet, CSV and TSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmr1.data.lines import not_utf8
from mmr1.data.readers.classes import Located, mending

# VLMEvalKit writes a picture once; other rows name the first by its index.
_LONGEST_INDEX = 64


def parquet_rows(path: Path) -> Iterator[Located]:
    """The rows of a parquet file. Raises ValueError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        mend = mending(table.schema_arrow)
        number = 0
        for batch in table.iter_batches(batch_size=64):
            for row in batch.to_pylist():
                yield f"{path}[{number}]", mend(row)
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a valid parquet file: {error}") from error


def delimited_rows(path: Path) -> Iterator[Located]:
    """The rows of a CSV or TSV file with a header; empty fields are null.

    Spreadsheets also write semicolons or tabulators between the columns of a CSV file.

    A value in the column ``image`` that is another row's ``index`` stands for that row's picture.

    Raises:
        ValueError: The file is neither UTF-8 nor UTF-16 text with its mark, or no table.
    """
    pictures = _named_pictures(path)
    for where, row in _records(path):
        if isinstance(row, dict) and row.get("image") in pictures:
            row = {**row, "image": pictures[row["image"]]}
        yield where, row


def _named_pictures(path: Path) -> dict[str, str]:
    """The pictures that other rows name by their index."""
    named = set()
    for _, row in _records(path):
        if not isinstance(row, dict) or "index" not in row:
            return {}
        if row.get("image") and len(row["image"]) <= _LONGEST_INDEX:
            named.add(row["image"])
    if not named:
        return {}
    rows = (row for _, row in _records(path) if isinstance(row, dict))
    return {row["index"]: row["image"] for row in rows if row["index"] in named and row["image"]}


def _records(path: Path) -> Iterator[Located]:
    csv.field_size_limit(2**31 - 1)  # a picture in base64 is one field
    with path.open("rb") as raw:
        marked = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
    try:
        with path.open(encoding="utf-16" if marked else "utf-8-sig", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else _delimiter(file.readline())
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter)
            for row in reader:
                yield f"{path}:{reader.line_num}", _row(row)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {not_utf8(error, path)}") from error
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from error


def _delimiter(header: str) -> str:
    """The delimiter of a CSV file: the most frequent candidate in its header.

    >>> _delimiter("question;answer"), _delimiter("question,answer;note")
    (';', ',')
    """
    return max(",;\t", key=header.count)


def _row(row: Mapping[Any, Any]) -> dict[str, Any] | ValueError:
    if None in row:
        return ValueError(f"the row has {len(row[None])} field(s) more than the header")
    return {name: value or None for name, value in row.items()}
