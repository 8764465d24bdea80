"""Columns of classes, as ``datasets`` stores them: numbers, whose names are in the features."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Classes = Mapping[str, Sequence[str]]
"""The names of the classes, by column."""


def classes_of(features: Any) -> Classes:
    """The columns of classes among features, as ``datasets`` or the file's metadata give them."""
    found: dict[str, Sequence[str]] = {}
    for column, feature in features.items():
        names = feature.get("names") if isinstance(feature, Mapping) else None
        kind = feature.get("_type") if isinstance(feature, Mapping) else type(feature).__name__
        if kind == "ClassLabel":
            found[column] = names or getattr(feature, "names", None) or ()
    return found


def classes_of_schema(metadata: Mapping[bytes, bytes] | None) -> Classes:
    """The columns of classes that ``datasets`` noted in an Arrow or parquet file."""
    try:
        noted = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        return classes_of(noted["info"]["features"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def with_names(row: dict[str, Any], classes: Classes) -> dict[str, Any]:
    """The row with the names of its classes; one without a class (-1) has none.

    >>> with_names({"answer": 1, "n": 1}, {"answer": ["no", "yes"]})
    {'answer': 'yes', 'n': 1}
    """
    for column, names in classes.items():
        number = row.get(column)
        if isinstance(number, int) and number < len(names):
            row[column] = names[number] if number >= 0 else None
    return row
