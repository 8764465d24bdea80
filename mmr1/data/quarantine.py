"""Rows that cannot be used: dropped, counted and named, never replaced by something made up."""

from __future__ import annotations

from collections.abc import Callable


class Quarantine:
    """Collects the dropped rows of datasets and stops the run when one of them loses too many.

    Args:
        max_fraction: Largest share of a dataset's rows that may be dropped; 0 stops at the first.

    Attributes:
        dropped: One ``{"row": where, "reason": why}`` for each row left out. A sample that was
            read is a row by its id, and has its file and line as ``place``.
    """

    def __init__(self, max_fraction: float) -> None:
        self.max_fraction = max_fraction
        self.dropped: list[dict[str, str]] = []
        self._totals: dict[str, int] = {}
        self._of: dict[str, list[dict[str, str]]] = {}
        self._places: dict[str, Callable[[str], str | None]] = {}

    def locate(self, dataset: str, place_of: Callable[[str], str | None]) -> None:
        """Remember where the samples of a dataset are: a function from an id to file and line."""
        self._places[dataset] = place_of

    def place(self, dataset: str, name: str) -> str | None:
        """Return the file and line of a sample by its id; None if they are unknown."""
        return self._places[dataset](name) if dataset in self._places else None

    def named(self, dataset: str, name: str) -> str:
        """A sample by file, line and id; any other name unchanged."""
        place = self.place(dataset, name)
        return name if place is None else f"{place} ('{name}')"

    def drop(self, dataset: str, where: str, reason: str) -> None:
        """Name a row that is left out. Raises ValueError if none may be."""
        if self.max_fraction == 0:
            raise ValueError(
                f"{self.named(dataset, where)}: {reason} (to continue without such rows set "
                "data.max_bad_fraction)"
            )
        entry = {"row": where, "reason": reason}
        if (place := self.place(dataset, where)) is not None:
            entry["place"] = place
        self.dropped.append(entry)
        self._of.setdefault(dataset, []).append(entry)

    def read(self, dataset: str, total: int) -> None:
        """Record that all ``total`` rows of a dataset were read.

        Raises:
            ValueError: See ``check``.
        """
        self._totals[dataset] = total
        self.check(dataset)

    def check(self, dataset: str) -> None:
        """Check that few enough of a dataset's rows were dropped.

        Raises:
            ValueError: More than the allowed share was dropped, or every row.
        """
        dropped, total = self._of.get(dataset, []), self._totals[dataset]
        if dropped and (len(dropped) > self.max_fraction * total or len(dropped) == total):
            first = dropped[0]
            where = self.named(dataset, first["row"])
            raise ValueError(
                f"{len(dropped)} of {total} rows of {dataset} cannot be used, more than "
                f"data.max_bad_fraction={self.max_fraction:g} allows; the first: {where}: "
                f"{first['reason']}"
            )
