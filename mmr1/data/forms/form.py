"""What a row format is: the columns that tell it apart, and how a row becomes a ``Sample``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.types import Sample

Row = Mapping[str, Any]
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
        keys: A row of this format has all of them.
        read: ``(row, place) -> sample``; raises ValueError for a row that cannot be used.
    """

    name: str
    keys: tuple[str, ...]
    read: Callable[[Row, Place], Sample]

    def matches(self, row: Row) -> bool:
        """Whether the row has this format's columns."""
        return all(row.get(key) is not None for key in self.keys)
