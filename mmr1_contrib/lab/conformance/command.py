"""``mmr1 parity``: does a rollout engine do what every engine must?"""

from __future__ import annotations

from typing import Annotated

import typer

from mmr1.logs import LogLevel, failing_output_muted, log_to_terminal
from mmr1.progress import reporting_waits


def parity(
    model: Annotated[str, typer.Argument(help="Model folder, or its name on the Hub")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key.path=value, such as rollout.engine=hf")
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", callback=log_to_terminal, help="Of the log lines on stderr"),
    ] = LogLevel.WARNING,
) -> None:
    """Check a rollout engine against transformers alone: log-probs, pictures, seeds, weights."""
    from mmr1_contrib.lab.conformance.bench import opened_bench, parity_config
    from mmr1_contrib.lab.conformance.checks import CHECKS

    failed = 0
    with (
        failing_output_muted(),
        reporting_waits(),
        opened_bench(parity_config(model, overrides or [])) as bench,
    ):
        for name, check in CHECKS.items():
            verdict = check(bench)
            failed += verdict.passed is False
            word = {True: "pass", False: "FAIL", None: "-"}[verdict.passed]
            typer.echo(f"  {word:<5} {name:<31} {verdict.measured}")
    typer.echo(f"{failed} of {len(CHECKS)} checks failed" if failed else "the engine conforms")
    raise typer.Exit(int(bool(failed)))
