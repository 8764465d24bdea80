"""The command ``mmr1 migrate``.

Every call of ``mmr1`` imports this module, so it loads what the command does when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def migrate(
    config: Annotated[Path, typer.Argument(help="Their configuration (YAML), or a shell script")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value on top, with their keys")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="easyr1, verl, trl, openrlhf or a kind such as trl-dpo; default: by the content",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write; default, or -: print")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show the settings of the loss side by side instead")
    ] = False,
) -> None:
    """Convert the configuration of another project."""
    from mmr1_contrib.migrate.command import migrate_file

    migrated = migrate_file(config, overrides or (), project=project)
    text = migrated.side_by_side if check else migrated.yaml
    if output is None or str(output) == "-":
        typer.echo(text, nl=False)
    elif output.exists():
        raise ValueError(f"{output} already exists; name another --output")
    else:
        output.write_text(text)
        typer.echo(migrated.report(output), nl=False)
