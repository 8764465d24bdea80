"""What a reader yields: raw rows, each with its location for messages."""

from __future__ import annotations

from typing import Any

Located = tuple[str, Any]
"""The location of a row, for messages, and the row or the error of reading it."""
