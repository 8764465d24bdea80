"""MLflow: the server of ``MLFLOW_TRACKING_URI``, or a SQLite file in ``OUTPUT/mlflow``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmr1.trainer.runs.tracking import COLUMNS, Row, Start, strip

PACKAGE = "mlflow"

PARAMETER_LENGTH = 500
"""Characters that MLflow stores of a parameter's value."""


class Mlflow:
    """Metrics, parameters, and one JSON table of rollouts per step."""

    def __init__(self, library: Any, client: Any, run_id: str) -> None:
        self._library = library
        self._client = client
        self._run_id = run_id

    def log(self, step: int, numbers: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metric = self._library.entities.Metric
        metrics = [metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run_id, metrics)

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        columns: dict[str, list[Any]] = {n: [getattr(r, n) for r in rows] for n in COLUMNS}
        if rows and all(row.images for row in rows):
            columns["image"] = [self._library.Image(strip(row.images)) for row in rows]
        self._client.log_table(self._run_id, columns, f"rollouts/step_{step:06d}.json")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def start(run: Start) -> Mlflow:
    import mlflow

    server = os.environ.get("MLFLOW_TRACKING_URI")
    store = run.folder.resolve() / "mlflow"
    client = mlflow.MlflowClient(server or _database(store))
    experiment = client.get_experiment_by_name(run.project)
    identity = (
        experiment.experiment_id
        if experiment
        else client.create_experiment(run.project, None if server else (store / "files").as_uri())
    )
    tags = dict.fromkeys(run.tags, "")  # MLflow's have values
    run_id = client.create_run(identity, run_name=run.name, tags=tags).info.run_id
    for name, value in _flat(run.config).items():
        client.log_param(run_id, name, str(value)[:PARAMETER_LENGTH])
    return Mlflow(mlflow, client, run_id)


def _database(store: Path) -> str:
    store.mkdir(exist_ok=True)
    return f"sqlite:///{store / 'mlflow.db'}"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as ``a.b.c``, because MLflow's parameters are flat."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        flat.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat
