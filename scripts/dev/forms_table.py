"""Write the tables of docs/formats.md: row formats (``mmr1/data/forms``), and kinds of files.

python scripts/dev/forms_table.py            write it
python scripts/dev/forms_table.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import file_examples

from mmr1.data.forms import built_in_forms
from mmr1.data.forms.form import Form, Row

PAGE = Path(__file__).parents[2] / "docs/formats.md"


def forms() -> str:
    """Every format with example rows, in the order in which they are tried."""
    head = "| `data.format` | written by | told by | an example row |\n|---|---|---|---|\n"
    return head + "".join(line for form in built_in_forms() for line in _lines(form))


def page(text: str) -> str:
    """The page with the tables in their places."""
    for name, table in (("forms", forms()), ("files", file_examples.table())):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def _lines(form: Form) -> list[str]:
    keys = ", ".join(f"`{key}`" for key in form.keys)
    return [_line(form.name, form.written_by, keys, form.example)] + [
        _line(form.name, who, keys, row) for who, row in form.variants.items()
    ]


def _line(name: str, who: str, keys: str, example: Row) -> str:
    text = json.dumps(example, ensure_ascii=False).replace("|", "&#124;")
    return f"| `{name}` | {who} | {keys} | `{text}` |\n"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(text != page(text))
    PAGE.write_text(page(text))
