"""Write the table of row formats in docs/datasets.md from ``mmr1/data/forms``.

python scripts/dev/forms_table.py            write it
python scripts/dev/forms_table.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mmr1.data.forms import FORMS
from mmr1.data.forms.form import Form

PAGE = Path(__file__).parents[2] / "docs/datasets.md"
BEGIN, END = "<!-- forms: begin -->\n", "<!-- forms: end -->\n"


def table() -> str:
    """Every format with an example row, in the order in which they are tried."""
    head = "| `data.format` | written by | told by | an example row |\n|---|---|---|---|\n"
    return head + "".join(map(_line, FORMS.values()))


def page(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{table()}{END}{after}"


def _line(form: Form) -> str:
    keys = ", ".join(f"`{key}`" for key in form.keys)
    example = json.dumps(form.example, ensure_ascii=False).replace("|", "&#124;")
    return f"| `{form.name}` | {form.written_by} | {keys} | `{example}` |\n"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(text != page(text))
    PAGE.write_text(page(text))
