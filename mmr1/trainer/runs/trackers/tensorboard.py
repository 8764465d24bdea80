"""TensorBoard: event files in ``OUTPUT/tensorboard``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmr1.trainer.runs.tracking import COLUMNS, Row, Start, distinct, strip

PACKAGE = "tensorboard"

IMAGES = 8
"""Distinct images logged per step, those of tools beside that of their prompt."""


class TensorBoard:
    """Scalars, a table in Markdown, and the images of its first prompts."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        self._writer.add_text("rollouts", markdown(rows), step)
        of_prompt: Counter[str] = Counter()
        for row in distinct(rows)[:IMAGES]:
            of_prompt[row.id] += 1
            number = f"-{of_prompt[row.id]}" if of_prompt[row.id] > 1 else ""
            pixels = np.asarray(strip(row.images))
            self._writer.add_image(f"rollouts/{row.id}{number}", pixels, step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


def start(run: Start) -> TensorBoard:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(run.folder / "tensorboard")
    writer.add_text("run", " ".join(f"`{text}`" for text in (run.name, *run.tags)))
    return TensorBoard(writer)


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with code cells, because completions contain tags, pipes and line breaks.

    >>> row = Row("a", "2+2?", "4", "<b>4</b> | `x`", 1.0, "ok", 0.5)
    >>> print(markdown([row]).splitlines()[2])
    | `a` | `2+2?` | `4` | `<b>4</b> ¦ 'x'` | `1.0` | `ok` | `0.5` |
    """
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for row in rows:
        cells = (str(getattr(row, name)) for name in COLUMNS)
        lines.append(f"| {' | '.join(f'`{_cell(cell)}`' for cell in cells)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "¦").replace("`", "'") or " "
