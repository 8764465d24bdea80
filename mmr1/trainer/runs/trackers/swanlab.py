"""SwanLab: the cloud after ``swanlab login``, else local files in ``OUTPUT/swanlab``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mmr1.trainer.runs.tracking import Row, Start, distinct, strip

PACKAGE = "swanlab"


class SwanLab:
    """Metrics, completions as texts, and images captioned with id and answer."""

    def __init__(self, library: Any, run: Any) -> None:
        self._library = library
        self._run = run

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        text, image = self._library.Text, self._library.Image
        texts = [text(row.completion, caption=f"{row.id}: {row.reward}") for row in rows]
        content: dict[str, Any] = {"rollouts": texts}
        if pictures := [
            image(strip(row.images), caption=f"{row.id}: {row.answer}") for row in distinct(rows)
        ]:
            content["rollouts/images"] = pictures
        self._run.log(content, step=step)

    def close(self) -> None:
        self._run.finish()


def start(run: Start) -> SwanLab:
    import swanlab

    return SwanLab(
        swanlab,
        swanlab.init(
            project=run.project,
            experiment_name=run.name,
            tags=list(run.tags) or None,
            config=run.config,
            logdir=str(run.folder / "swanlab"),
            mode=os.environ.get("SWANLAB_MODE", "offline"),
        ),
    )
