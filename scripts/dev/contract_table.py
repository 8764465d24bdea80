"""Write the table of docs/check_a_run.md: what a command checks before it samples or learns.

python scripts/dev/contract_table.py            write it
python scripts/dev/contract_table.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from mmr1.trainer.contract import PROMISES

PAGE = Path(__file__).parents[2] / "docs/check_a_run.md"
BEGIN, END = "<!-- contract: begin -->\n", "<!-- contract: end -->\n"


def table() -> str:
    """Return every promise of the contract as a row."""
    head = "| promise | how it is checked | if it is broken | looks at |\n|---|---|---|---|\n"
    rows = (f"| {p.name} | {p.checked} | {p.broken} | {p.when} |\n" for p in PROMISES)
    return head + "".join(rows)


def page(text: str) -> str:
    """Return the page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(text != page(text))
    PAGE.write_text(page(text))
