"""Write the table of EasyR1's keys in docs/migration.md from the lists that ``mmr1 migrate`` uses.

python scripts/dev/migration_table.py            write it
python scripts/dev/migration_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mmr1.migrate.easyr1_keys import COMPOSED, DEFAULTS, RENAMED, TRANSLATED, UNNEEDED

PAGE = Path(__file__).parents[2] / "docs/migration.md"
HEAD = "| EasyR1 | its default | here |"
IN_PAGE = re.compile(rf"^{re.escape(HEAD)}\n(\|.*\n)+", re.M)


def table() -> str:
    """The table, one row per key of EasyR1."""
    return "\n".join([HEAD, "|---|---|---|", *_rows(), ""])


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
    text = PAGE.read_text()
    written = IN_PAGE.sub(lambda _: table(), text)
    if "--check" in sys.argv[1:]:
        sys.exit(not IN_PAGE.search(text) or written != text)
    PAGE.write_text(written)
