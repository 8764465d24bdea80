"""Figures and settings of a check, and its ways to say that it cannot run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

Figures = dict[str, "float | str"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The machine and the size of a check.

    Attributes:
        device: ``cuda`` or ``cpu``.
        folder: Folder of the check alone.
        short: Whether the check takes seconds, on the smallest shapes.
    """

    device: str
    folder: Path
    short: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


def has(package: str) -> bool:
    """Return whether a package is installed."""
    return importlib.util.find_spec(package) is not None


class SkippedError(Exception):
    """The machine lacks what the check needs."""


class OutOfBoundsError(Exception):
    """A figure is not what it must be.

    Attributes:
        figures: All that were measured.
    """

    def __init__(self, figures: Figures, name: str, bound: float) -> None:
        super().__init__(f"{name} is {figures[name]}, and may be {bound:g} at most")
        self.figures = figures


def within(figures: Figures, bounds: dict[str, float]) -> Figures:
    """The figures, if each is a number up to its bound. Raises OutOfBoundsError if one is not."""
    for name, bound in bounds.items():
        value = figures[name]
        if not (isinstance(value, int | float) and value <= bound):
            raise OutOfBoundsError(figures, name, bound)
    return figures
