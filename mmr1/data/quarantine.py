"""Rows that cannot be used: dropped, counted and named, never replaced."""

from __future__ import annotations

import json
from pathlib import Path


class Quarantine:
    """Collects dropped rows and stops the run when they are too many.

    Args:
        path: ``quarantine.jsonl``, or None to keep the list in memory only.
        max_fraction: Largest share of rows that may be dropped; 0 stops at the first.
    """

    def __init__(self, path: Path | None, max_fraction: float) -> None:
        self.path = path
        self.max_fraction = max_fraction
        self.dropped: list[dict[str, str]] = []

    def drop(self, where: str, reason: str) -> None:
        """Name a row that is left out.

        Raises:
            ValueError: None may be.
        """
        if self.max_fraction == 0:
            raise ValueError(
                f"{where}: {reason} (to go on without such rows set data.max_bad_fraction)"
            )
        entry = {"row": where, "reason": reason}
        self.dropped.append(entry)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def check(self, total: int) -> None:
        """Raise ValueError when more than the allowed share of ``total`` rows was dropped."""
        if len(self.dropped) > self.max_fraction * total:
            first = self.dropped[0]
            where = f"; all of them are in {self.path}" if self.path is not None else ""
            raise ValueError(
                f"{len(self.dropped)} of {total} rows cannot be used, more than "
                f"data.max_bad_fraction={self.max_fraction:g} allows; the first: {first['row']}: "
                f"{first['reason']}{where}"
            )
