"""The command ``mmr1 compare``: run the arms, and print how they differ.

Every call of ``mmr1`` imports this module, so what runs and measures is imported when it is used.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mmr1.logs import LogLevel, failing_output_muted, log_to_terminal


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="YAML files of configurations, or one with arms; key.path=value for all of them"
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="eval/greedy, or NAME of metrics.jsonl, or NAME:mean, :sum, :last"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each configuration")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the runs and results")] = Path(
        "runs/compare"
    ),
    margin: Annotated[
        float | None,
        typer.Option(help="Smallest difference that matters; below 0: not worse by as much"),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", callback=log_to_terminal, help="Of the log lines on stderr"),
    ] = LogLevel.WARNING,
) -> None:
    """Train configurations over the same seeds and compare them; repeat it to continue."""
    from mmr1_contrib.lab.compare.plan import read_plan
    from mmr1_contrib.lab.compare.results import write_results
    from mmr1_contrib.lab.compare.trials import run_trials

    plan = read_plan(arguments, metric or (), margin)
    with failing_output_muted(), _stopped_like_interrupted():
        trials = run_trials(plan, range(seeds), output)
        print(write_results(output, plan, trials), end="")
        print(f"written: {output}/compare.md, compare.json, compare.png")


@contextmanager
def _stopped_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and a closed terminal, too, have the present run save its step."""

    def stop(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
