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


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="Converter; 'mmr1-data list' shows them")],
    source: Annotated[Path, typer.Option("--input", help="The dataset's file or folder")],
    output: Annotated[Path, typer.Option(help="Folder to write; an unfinished one is resumed")],
    media_root: Annotated[
        Path | None, typer.Option(help="Folder of the media paths, if not that of the rows")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; one per core by default")] = None,
    embed: Annotated[bool, typer.Option(help="Put the media into the records")] = False,
) -> None:
    """Convert a dataset to canonical records."""
    from datasets_prep.convert import convert
    from datasets_prep.tables import print_outcome

    print_outcome(convert(name, source, output, media_root, workers, embed))


def main() -> None:
    """Run the CLI: exit code 0, or 2 with one line on stderr for what the user can mend."""
    try:
        app()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
