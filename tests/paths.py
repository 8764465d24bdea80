"""Where things lie."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
