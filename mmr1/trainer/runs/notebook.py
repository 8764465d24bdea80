"""Progress of a run in a Jupyter notebook: one cell that each step replaces."""

from __future__ import annotations

from html import escape
from itertools import islice
from typing import Any

from mmr1.trainer.runs.step import Step

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
        yield "<tr>" + "".join(f"<td>{escape(_short(text))}</td>" for text in texts) + "</tr>"


def _short(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} …"
