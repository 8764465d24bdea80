"""A table of a documentation page that a script writes; its first line tells where it stands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path


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
