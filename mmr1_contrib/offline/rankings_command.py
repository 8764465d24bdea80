"""``mmr1-data rankings``: every ``mmr1-data`` imports this module, so it imports nothing slow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rankings(
    path: Annotated[Path, typer.Argument(help="A record file, or a folder of them")],
    completions: Annotated[
        Path, typer.Argument(help="completions.jsonl of mmr1 eval, or the rollouts folder of a run")
    ],
    output: Annotated[Path, typer.Option(help="Record file to write")],
    function: Annotated[str, typer.Option(help="Reward function that ranks")],
) -> None:
    """Write rankings of a model's completions, for mmr1 rm."""
    from mmr1_contrib.offline.rankings import rank_completions

    written, _, total = rank_completions(path, completions, output, function)
    typer.echo(f"{output}: {written:,} rankings, of {total:,} records")
