"""Weights & Biases. Without a login the run is stored in ``OUTPUT/wandb`` for ``wandb sync``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mmr1.config.secrets import masked_keys
from mmr1.trainer.runs.tracking import COLUMNS, Row, Start, strip

PACKAGE = "wandb"


class Wandb:
    """Metrics, and a table of rollouts with their images."""

    def __init__(self, library: Any, run: Any) -> None:
        self._library = library
        self._run = run

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        table = self._library.Table(columns=["image", *COLUMNS])
        for row in rows:
            image = self._library.Image(strip(row.images)) if row.images else None
            table.add_data(image, *(getattr(row, name) for name in COLUMNS))
        self._run.log({"rollouts": table}, step=step)

    def close(self) -> None:
        self._run.finish()


def start(run: Start) -> Wandb:
    import wandb

    # Given by name: W&B reads the environment once in a process, perhaps for an earlier run.
    mode = os.environ.get("WANDB_MODE") or (None if wandb.api.api_key else "offline")
    return Wandb(
        wandb,
        wandb.init(
            project=run.project,
            name=run.name,
            tags=run.tags or None,
            dir=run.folder,
            config=run.config,
            mode=mode,
            # Its metadata has the command line, where a credential may stand in clear.
            settings=wandb.Settings(console="off", x_disable_meta=bool(masked_keys(run.config))),
        ),
    )
