"""The commands ``mmr1 migrate`` and ``mmr1 recipe check``.

Every call of ``mmr1`` imports this module, so it loads what the commands do when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmr1.recipes import recipe as recipe_folder


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
    output: Annotated[Path | None, typer.Option(help="File to write; default: print")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show the settings of the loss side by side instead")
    ] = False,
) -> None:
    """Convert the configuration of another project."""
    from mmr1_contrib.migrate.command import migrate_file

    migrated = migrate_file(config, overrides or (), project=project)
    text = migrated.side_by_side if check else migrated.yaml
    if output is None:
        typer.echo(text, nl=False)
    elif output.exists():
        raise ValueError(f"{output} already exists; name another --output")
    else:
        output.write_text(text)
        typer.echo(migrated.report(output), nl=False)


def recipe_check(
    recipe: Annotated[str, typer.Argument(help="As mmr1 recipe list has it, such as video_r1")],
    original: Annotated[Path, typer.Option(help="A checkout of the project")],
    model: Annotated[
        str | None, typer.Option(help="Model whose processor is used; default: a small new one")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Default: runs/RECIPE/certificate")] = None,
    commit: Annotated[
        str | None, typer.Option(help="Commit of a copy of the files; a git checkout knows its own")
    ] = None,
) -> None:
    """Certify prompts, pictures, rewards, frames and loss of an exact recipe by its original."""
    from mmr1_contrib.migrate.originals.certificate import check_recipe

    for line in check_recipe(recipe_folder(recipe), original, model, output, commit):
        typer.echo(line)
