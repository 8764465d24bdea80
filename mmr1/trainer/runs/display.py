"""Progress of a run: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmr1.config import TrainerConfig
from mmr1.terminal import printable
from mmr1.trainer.runs.notebook import NotebookCell
from mmr1.trainer.runs.output import RunDirectory
from mmr1.trainer.runs.step import Step

logger = logging.getLogger(__name__)

# Metric names and how the bar calls them, in the order of importance; the reward's components come
# after its mean. Those of WHEN_MET are left out while they are 0.
WHEN_MET = {"reward/invalid"}
SHOWN = {
    "eval/greedy": "held out",
    "eval/sampled": "held out, sampled",
    "reward/invalid": "invalid",
    "reward/no_signal": "no signal",
    "loss": "loss",
    "entropy": "entropy",
    "completion/length_mean": "length",
    "rollout/logprob_gap": "gap",
    "grad_norm": "grad",
    "time/step": "s/step",
}


class Display:
    """Shows the steps of one run."""

    def __init__(
        self, config: TrainerConfig, directory: RunDirectory, functions: Iterable[str] = ()
    ) -> None:
        """``functions``: the names of the reward functions."""
        self._console = Console(markup=False, emoji=False)
        self._config = config
        rewards = {f"reward/{name}": name for name in functions}
        self._shown = {"reward/mean": "reward", **rewards, **SHOWN}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._cell = NotebookCell(config.steps) if self._console.is_jupyter else None
        self._task = self._progress.add_task(
            printable(directory.path.name), total=config.max_steps, numbers=""
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """One plain line as it is, also in the log."""
        logger.info("%s", line)
        self._console.print(printable(line), highlight=False, soft_wrap=True)

    def show(self, step: Step) -> None:
        """One step: moves the bar, or prints a line every ``trainer.logging_steps`` steps."""
        stats, number = step.metrics, step.number
        numbers = "  ".join(
            f"{name} {_short(stats[key])}"
            for key, name in self._shown.items()
            if key in stats and (stats[key] or key not in WHEN_MET)
        )
        if self._cell is not None:
            self._cell.show(step, numbers)
            return
        self._progress.update(self._task, completed=number, numbers=numbers)
        is_due = number % self._config.logging_steps == 0 or number in (1, self._config.max_steps)
        if not self._console.is_terminal and is_due:
            self.say(f"step {number:>5}/{self._config.max_steps}  {numbers}")


def _short(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
