"""A row format: the columns that identify it, and how a row becomes a ``Sample``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.types import Sample

Row = Mapping[str, Any]
CHANGED = "changed_from_row"
"""The column of ``meta`` that says how a sample differs from its row, where it does."""
Turns = list[tuple[str, str]]
"""``(role, text with tags)`` of each message."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a row: the root of its media paths, its dataset and its index there."""

    root: Path
    source: str
    index: int


@dataclass(frozen=True, slots=True)
class Form:
    """One row format.

    Attributes:
        name: Its name in ``data.format``.
        written_by: The projects whose rows have it, for the documentation.
        keys: A row of this format has all of them, and none is null.
        read: ``(row, place) -> sample``; raises ValueError for a row that cannot be used.
        fits: Predicate that tells the row apart from others with the same columns.
    """

    name: str
    written_by: str
    keys: tuple[str, ...]
    read: Callable[[Row, Place], Sample]
    fits: Callable[[Row], bool] = lambda row: True

    def matches(self, row: Row) -> bool:
        """True if a row has this format."""
        for key in self.keys:  # a generator takes three times as long, for every row and format
            if row.get(key) is None:
                return False
        return self.fits(row)
