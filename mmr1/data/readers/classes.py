"""Decode columns of classes, which are numbers, and of decimals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a JSON file needs none
    import pyarrow as pa


Located = tuple[str, Any]
"""The location of a row, for messages, and the row or the error of reading it."""


class NoSuchDatasetError(ValueError):
    """A dataset does not exist, neither here nor on the hub."""


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


def mending(schema: pa.Schema) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The conversion of rows of an Arrow or parquet file: classes by name, decimals as numbers."""
    import pyarrow as pa

    classes = classes_of_schema(schema.metadata)
    decimals = [field.name for field in schema if pa.types.is_decimal(field.type)]

    def mend(row: dict[str, Any]) -> dict[str, Any]:
        for column in decimals:
            row[column] = plain_number(row[column])
        return with_names(row, classes)

    return mend


def plain_number(value: Decimal | None) -> int | float | str | None:
    """A decimal as a number; as text where no double holds all of its digits.

    >>> [plain_number(Decimal(text)) for text in ("4.00", "3.50", "0.12345678901234567890")]
    [4, 3.5, '0.12345678901234567890']
    """
    if value is None:
        return None
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


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
