"""Reading JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_jsonl(path: Path) -> list[Any]:
    """The objects of a file. Unlike ``str.splitlines`` a file has no line end inside a text, such
    as U+2028, which an untrained model may well write."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
