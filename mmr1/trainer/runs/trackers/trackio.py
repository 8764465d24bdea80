"""Trackio: its local store (``TRACKIO_DIR``), displayed by ``trackio show``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmr1.trainer.runs.tracking import COLUMNS, Row, Start, strip

PACKAGE = "trackio"


class Trackio:
    """Metrics, and a table of rollouts with their images."""

    def __init__(self, library: Any, run: Any) -> None:
        self._library = library
        self._run = run

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        import pandas

        image = self._library.Image
        frame = pandas.DataFrame({name: [getattr(r, name) for r in rows] for name in COLUMNS})
        if rows and all(row.images for row in rows):
            frame.insert(0, "image", [image(strip(row.images)) for row in rows])
        self._run.log({"rollouts": self._library.Table(dataframe=frame)}, step=step)

    def close(self) -> None:
        self._run.finish()


def start(run: Start) -> Trackio:
    import trackio

    return Trackio(
        trackio, trackio.init(project=run.project, name=run.name, config=run.config, embed=False)
    )
