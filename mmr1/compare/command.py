"""The command: run the arms, and print how they differ."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmr1.compare.plan import read_plan
from mmr1.compare.results import write_results
from mmr1.compare.trials import run_trials
from mmr1.logs import failing_output_muted


def run_comparison(
    arguments: Sequence[str], metrics: Sequence[str], seeds: int, output: Path, margin: float | None
) -> None:
    """Run every arm with seeds 0 to ``seeds - 1`` in ``output``; print and write the results.

    Raises:
        ValueError: Something of it cannot be used.
        RuntimeError: A run failed.
    """
    plan = read_plan(arguments, metrics, margin)
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
