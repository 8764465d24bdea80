"""``mmr1-data``: prepare datasets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Prepare datasets as canonical records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _commands() -> None:
    """Prepare datasets as canonical records."""


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Dataset to make; 'mmr1-data list' shows them")],
    output: Annotated[Path, typer.Option(help="Folder to write, new or empty")],
    seed: Annotated[int, typer.Option(help="Picks the splits and everything drawn")] = 0,
) -> None:
    """Make a generated or bundled dataset."""
    from datasets_prep.make import make

    manifest = make(name, output, seed)
    counts = ", ".join(f"{count:,} {split}" for split, count in manifest["counts"].items())
    typer.echo(f"{name}: {counts} in {output}")


def main() -> None:
    """Run the CLI: exit code 0, or 2 with one line on stderr for what the user can mend."""
    try:
        app()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
