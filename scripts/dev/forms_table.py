"""Write the table of docs/datasets.md on kinds of files. That of row formats is written by hand.

python scripts/dev/forms_table.py            write it
python scripts/dev/forms_table.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

import file_examples

PAGE = Path(__file__).parents[2] / "docs/datasets.md"


def page(text: str) -> str:
    """The page with the table in its place."""
    begin, end = "<!-- files: begin -->\n", "<!-- files: end -->\n"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{file_examples.table()}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(text != page(text))
    PAGE.write_text(page(text))
