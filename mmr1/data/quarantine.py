"""Rows that cannot be used: dropped, counted and named, never replaced."""

from __future__ import annotations


class Quarantine:
    """Collects dropped rows and stops the run when they are too many.

    Args:
        max_fraction: Largest share of rows that may be dropped; 0 stops at the first.

    Attributes:
        dropped: One ``{"row": where, "reason": why}`` for each row left out.
    """

    def __init__(self, max_fraction: float) -> None:
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
        self.dropped.append({"row": where, "reason": reason})

    def check(self, total: int) -> None:
        """Raise ValueError when more than the allowed share of ``total`` rows was dropped."""
        if len(self.dropped) > self.max_fraction * total:
            first = self.dropped[0]
            raise ValueError(
                f"{len(self.dropped)} of {total} rows cannot be used, more than "
                f"data.max_bad_fraction={self.max_fraction:g} allows; the first: {first['row']}: "
                f"{first['reason']}"
            )
