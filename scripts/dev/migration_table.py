"""Write the table of EasyR1's keys in docs/migration.md from the lists that ``mmr1 migrate`` uses.

python scripts/dev/migration_table.py            write it
python scripts/dev/migration_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from page_table import write_or_check

from mmr1.migrate.easyr1_keys import COMPOSED, DEFAULTS, RENAMED, TRANSLATED, UNNEEDED

PAGE = Path(__file__).parents[2] / "docs/migration.md"
HEAD = "| EasyR1 | its default | here |"


def _rows() -> Iterator[str]:
    for key in [*DEFAULTS, *(k for k in _meanings() if k not in DEFAULTS)]:
        default = str(DEFAULTS[key]) if key in DEFAULTS else ""
        yield f"| `{key}` | {default} | {_meanings()[key]} |"


def _meanings() -> dict[str, str]:
    names = {
        key: f"`{ours}`: {', '.join(f'{theirs} is {value}' for theirs, value in values.items())}"
        for key, (ours, values) in TRANSLATED.items()
    }
    same = {key: f"`{ours}`" for key, ours in RENAMED.items()}
    none = {key: f"none: {why}" for key, why in UNNEEDED.items()}
    return {**same, **names, **COMPOSED, **none}


if __name__ == "__main__":
    write_or_check(PAGE, HEAD, _rows())
