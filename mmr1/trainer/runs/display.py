"""Progress of a run: a live line and lines of metrics on a terminal, a cell in a notebook."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from itertools import islice
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mmr1.config import TrainerConfig
from mmr1.logs import printable
from mmr1.progress import oldest_activity
from mmr1.trainer.runs.findings import FLAT_STEPS, absolute_findings
from mmr1.trainer.runs.output import RunDirectory
from mmr1.trainer.runs.step import Step
from mmr1.types import StepStats

logger = logging.getLogger(__name__)

# Metrics, their names in a line and their formats, in the order of importance. The reward's
# components come after FIRST. Those of WHEN_MET are left out while they are 0.
FIRST = [
    ("reward/mean", "reward", ""),
    ("eval/greedy", "held out", ""),
    ("eval/sampled", "held out, sampled", ""),
    ("reward/num_invalid", "invalid", "{:.0f}"),
    ("completions/frac_truncated", "truncated", "{:.0%}"),
]
THEN = [
    ("reward/frac_zero_std", "no signal", "{:.0%}"),
    ("loss", "loss", ""),
    ("entropy", "entropy", ""),
    ("completions/mean_length", "length", ""),
    ("rollout/logprob_diff_mean", "gap", ""),
    ("grad_norm", "grad", ""),
    ("time/step", "s/step", ""),
]
WHEN_MET = {"reward/num_invalid", "completions/frac_truncated"}
LINE_S = 30.0
"""Seconds after which a step has a line of its metrics whatever its number."""
PHASE_S = 3.0
"""Seconds after which the live line names the phase that is going on."""
BAR_WIDTH = 20


class Display:
    """Shows the progress of one run.

    Every ``trainer.logging_steps`` steps, or every 30 s, a line of metrics is printed and logged.
    On a terminal it has what fits, and a live line below it has the step, the time that is left and
    the phase that is going on.
    """

    def __init__(
        self, config: TrainerConfig, directory: RunDirectory, functions: Iterable[str] = ()
    ) -> None:
        """``functions``: the names of the reward functions."""
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._config, self._folder = config, directory.path
        names = list(functions)
        values = [(f"rewards/{name}/mean", name, "") for name in names]
        unread = [(f"rewards/{name}/num_unread", f"{name} unread", "{:.0f}") for name in names]
        self._shown = [*FIRST, *values, *unread, *THEN]
        self._cell = NotebookCell(config.steps) if self._console.is_jupyter else None
        self._done, self._last = 0, dict[str, float]()
        self._ended: deque[float] = deque([time.monotonic()], maxlen=21)  # the ends of steps
        self._last_line = time.monotonic()
        self._first_steps: list[StepStats] = []
        self._said: set[str] = set()
        self._resumed = False
        live = self._console.is_terminal and self._cell is None
        live_line = Live(get_renderable=self._live_line, console=self._console, transient=True)
        self._live = live_line if live else None

    def __enter__(self) -> Self:
        every = self._config.logging_steps
        told = f"; a line every {every} steps" if every > 1 else ""
        self.say(f"training up to step {self._config.steps}, in {self._folder}{told}")
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def continue_after(self, done: int) -> None:
        """A run is resumed that had done so many steps."""
        self._done, self._resumed = done, True
        self.say(f"continuing after step {done}")

    def say(self, line: str) -> None:
        """One plain line as it is, also in the log."""
        logger.info("%s", line)
        self._console.print(printable(line), soft_wrap=True)

    def show(self, step: Step) -> None:
        """Show a step that is done."""
        self._done, self._last = step.number, step.metrics
        if step.number == 0:  # the time that validation takes before training is not a step's
            self._ended.clear()
        self._ended.append(time.monotonic())
        parts = list(_parts(step.metrics, self._shown))
        waited = time.monotonic() - self._last_line >= LINE_S
        by_number = step.number % self._config.logging_steps == 0
        if by_number or waited or step.number in (1, self._config.max_steps):
            self._last_line = time.monotonic()
            last = self._config.max_steps
            head = f"step {step.number:>{len(str(last))}}/{last}"
            logger.info("%s", "  ".join((head, *parts)))
            if self._cell is None:
                width = self._console.width if self._console.is_terminal else None
                self._console.print(printable(joined([head, *parts], width)), soft_wrap=True)
        if self._cell is not None:
            self._cell.show(step, "  ".join(parts))
        self._say_findings(step)

    def _say_findings(self, step: Step) -> None:
        """Say what the first steps of a run show by themselves, each finding once."""
        if not 0 < step.number <= FLAT_STEPS or self._resumed:
            return
        self._first_steps.append(step.metrics)
        names = dict.fromkeys(name for row in self._first_steps for name in row)
        columns = {name: [row.get(name) for row in self._first_steps] for name in names}
        for finding in absolute_findings(columns):
            if finding.title + finding.detail not in self._said:
                self._said.add(finding.title + finding.detail)
                first, last = finding.steps
                told = f"problem: {finding.title}, steps {first} to {last}: {finding.detail}"
                self.say(f"{told}; {finding.remedy}")

    def _live_line(self) -> Text:
        """A line such as ``12/300 ━━━╺──── 0:12:40 left reward 0.512 4.1 s/step rollout 12 s``."""
        steps, done = self._config.steps, self._done
        filled = BAR_WIDTH * done // steps
        bar = "━" * filled + "─" * (BAR_WIDTH - filled)
        parts = [f"{done}/{steps} {bar}"]
        if len(self._ended) > 1 and done < steps:
            per_step = (self._ended[-1] - self._ended[0]) / (len(self._ended) - 1)
            left = timedelta(seconds=round(per_step * (steps - done)))
            parts += [f"{left} left", f"{_short(per_step)} s/step"]
        activity = oldest_activity()
        if activity is not None and activity.seconds >= PHASE_S:
            parts.insert(1, f"{activity.what} {activity.seconds:.0f} s")
        parts += _parts(self._last, FIRST)
        return Text(printable(joined(parts, self._console.width)), no_wrap=True)


def joined(parts: Sequence[str], width: int | None) -> str:
    """The parts with two spaces between them: all of them, or the first that fit the width.

    >>> joined(["step 1", "reward 0.5", "loss 0.1"], 20)
    'step 1  reward 0.5'
    """
    line = parts[0]
    for part in parts[1:]:
        if width is not None and len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


def _parts(stats: StepStats, shown: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    for key, name, form in shown:
        if key in stats and (stats[key] or key not in WHEN_MET):
            yield f"{name} {form.format(stats[key]) if form else _short(stats[key])}"


def _short(value: float) -> str:
    """Three digits after the point, fewer of a large number.

    >>> _short(0.25), _short(12.345), _short(1234.5), _short(0.0001)
    ('0.250', '12.3', '1234', '1.0e-04')
    """
    size = abs(value)
    if 0 < size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


ROWS = 4
"""Completions in the table: those of the step's first prompts."""
LENGTH = 300
"""Characters shown of a question and of a completion."""


class NotebookCell:
    """A progress bar, the metrics of the last step, and a table of its completions.

    Args:
        steps: Steps of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._output: Any = None

    def show(self, step: Step, numbers: str) -> None:
        """Replace what is shown by this step; ``numbers`` is the line of its metrics."""
        from IPython.display import HTML, display

        content = HTML(cell_html(step, self._steps, numbers))
        if self._output is None:
            self._output = display(content, display_id=True)
        else:
            self._output.update(content)


def cell_html(step: Step, steps: int, numbers: str) -> str:
    """The cell after a step; a run without rollouts has no table."""
    bar = f'<progress value="{step.number}" max="{steps}"></progress>'
    line = f"<div>{bar} step {step.number}/{steps}&emsp;{escape(numbers)}</div>"
    rows = "".join(islice(_rows(step), ROWS))
    if not rows:
        return line
    heads = "".join(f"<th>{head}</th>" for head in ("question", "completion", "reward"))
    return f"{line}<table><tr>{heads}</tr>{rows}</table>"


def _rows(step: Step) -> Any:
    for scored in step.scored:
        completion, reward = scored.group.completions[0], scored.rewards[0]
        value = reward.status.value if reward.value is None else f"{reward.value:.3f}"
        texts = (scored.group.prompt.sample.question, completion.text, value)
        yield "<tr>" + "".join(f"<td>{escape(_cut(text))}</td>" for text in texts) + "</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} …"
