"""Write the table of docs/exact.md: in which keys exact recipes differ from the practical ones.

python scripts/dev/exact_table.py            write it
python scripts/dev/exact_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page_table import write_or_check

from mmr1.config.file import load_config
from mmr1_migrate.source import flattened

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/exact.md"
PLACES = (
    "data.train",
    "data.media_root",
    "data.format",
    "trainer.output_dir",
    "trainer.validation",
)
"""Where things are, and how they are read."""


def rows() -> Iterator[str]:
    os.environ["ORIGINAL"] = "ORIGINAL"
    for exact in sorted((ROOT / "scripts/recipes").glob("*/exact_*.yaml")):
        practical = exact.with_name(exact.name.removeprefix("exact_"))
        theirs, ours = _flat(exact), _flat(practical)
        for key in sorted({*theirs, *ours}):
            if theirs.get(key) != ours.get(key) and not key.startswith(PLACES):
                values = f"{_shown(theirs.get(key))} | {_shown(ours.get(key))}"
                yield f"| `{exact.parent.name}` | `{key}` | {values} |"


def _flat(file: Path) -> dict[str, Any]:
    tree = load_config(file).model_dump(mode="json")
    names = tree["rewards"].pop("functions")
    tree["rewards"]["functions"] = ", ".join(names)
    return flattened(tree)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).replace("|", "/")
    return text.rpartition("/")[2] if text.startswith("ORIGINAL/") else text


if __name__ == "__main__":
    write_or_check(PAGE, "| recipe | key | exact | here |", rows())
