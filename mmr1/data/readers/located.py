"""What a reader yields: raw rows, each with its location for messages; and that there are none."""

from __future__ import annotations

from typing import Any

Located = tuple[str, Any]
"""The location of a row, for messages, and the row or the error of reading it."""


class NoSuchDatasetError(ValueError):
    """A dataset is not there, neither here nor on the hub; one that is broken is another error."""
