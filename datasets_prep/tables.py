"""Tables for the terminal and for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; columns of numbers are aligned on the right."""
    console = Console()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    console.width = max(console.width, 100) if console.is_terminal else 200
    console.print(table)


def print_outcome(manifest: Mapping[str, Any]) -> None:
    """Print how many rows a conversion kept, changed and dropped."""
    counts = manifest["counts"]
    rows = [("rows in", counts["rows"]), ("records out", counts["records"])]
    rows += [
        (f"records {kind}", count) for kind, count in manifest.get("records_by_media", {}).items()
    ]
    rows += [(f"changed: {change}", count) for change, count in manifest["changed"].items()]
    rows += [(f"dropped: {reason}", count) for reason, count in manifest["dropped"].items()]
    print_table(manifest["name"], ("", "count"), rows)
    if unread := manifest.get("columns_not_read"):
        print(f"columns not read (kept in meta where JSON holds them): {', '.join(unread)}")
