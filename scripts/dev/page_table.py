"""Tables of documentation pages: write one, whose first line tells where it stands; read one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_FORM = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| `(\{.+\})` \|$", re.M)


def form_rows(page: Path) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield format, writer, keys and row of each example row in docs/datasets.md."""
    for name, who, keys, row in _FORM.findall(page.read_text()):
        yield name, who, keys, json.loads(row.replace("&#124;", "|"))


def write_or_check(page: Path, head: str, rows: Iterable[str]) -> None:
    """Write the table into the page; with ``--check`` exit with 1 when it is another one."""
    table = "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows, ""])
    in_page = re.compile(rf"^{re.escape(head)}\n(\|.*\n)+", re.M)
    text = page.read_text()
    written = in_page.sub(lambda _: table, text)
    if "--check" not in sys.argv[1:]:
        page.write_text(written)
    elif not in_page.search(text) or written != text:
        sys.exit(1)
