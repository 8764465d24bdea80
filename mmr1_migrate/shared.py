"""What several projects have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmr1_migrate.migration import Migration

TRACKERS = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
ALWAYS = ("console", "file")
"""Loggers whose work is always done: progress, and metrics.jsonl."""

NO_LIMIT = 1_000_000
"""In place of "as often as it takes"."""


def is_one_of(*values: Any) -> Callable[[Any], bool]:
    """A test of a setting's value."""
    return lambda value: value in values


def is_none_of(*values: Any) -> Callable[[Any], bool]:
    """The contrary."""
    return lambda value: value not in values


def set_trackers(migration: Migration, key: str, given: Any) -> None:
    """One tracker or several."""
    names = [given] if isinstance(given, str) else list(given)
    migration.set("trainer.trackers", [name for name in names if name in TRACKERS])
    for name in names:
        if name == "file":
            migration.note(key, name, "metrics.jsonl is written in any case")
        elif name not in (*TRACKERS, *ALWAYS):
            migration.note(key, name, "no such tracker here")


def set_checkpoints(migration: Migration, key: str, limit: int | None) -> None:
    """How many checkpoints stay."""
    if limit is not None and limit >= 2:
        migration.set("trainer.save_total_limit", limit)
    else:
        migration.note(key, limit, "at least 2 checkpoints are kept, 2 by default")


def set_training_files(migration: Migration, key: str, given: Any) -> None:
    """One file, or several that are read as one."""
    files = [given] if isinstance(given, str) else list(given)
    if len(files) == 1:
        migration.set("data.train", files[0])
        return
    migration.set("data.train", dict.fromkeys(files, 1.0))
    migration.note(
        key, given, "they are read one after the other there; here their weights are the shares of "
        "the rows that are drawn, so set them to the numbers of rows",
    )  # fmt: skip


def set_lora(migration: Migration, rank: int, alpha: float, modules: Any) -> None:
    """Adapters on these layers; names as a list or with commas."""
    if isinstance(modules, str) and modules != "all-linear":
        modules = [name.strip() for name in modules.split(",") if name.strip()]
    migration.set("model.lora", {"rank": rank, "alpha": alpha, "target_modules": modules})


def set_schedule(
    migration: Migration, epochs: int, warmup_steps: int | None, warmup_ratio: float | None
) -> None:
    """The warm-up, in rollouts, as optimizer steps; ``epochs`` passes over a rollout."""
    sampled = migration.tree["rollout"]["batch_size"]
    size = migration.tree.get("algorithm", {}).get("ppo_mini_batch_size", sampled)
    if warmup_steps is None and warmup_ratio:
        migration.set("optimizer.warmup_ratio", warmup_ratio)
    else:
        migration.set("optimizer.warmup_steps", (warmup_steps or 0) * epochs * (sampled // size))
