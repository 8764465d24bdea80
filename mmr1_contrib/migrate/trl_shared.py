"""Keys that TRL's trainers share: data, batches, the optimizer, LoRA and the trainer's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.shared import (
    set_checkpoints,
    set_least_rate,
    set_lora,
    set_tracking,
    set_validation,
)

SCHEDULES = {
    "linear": "linear", "cosine": "cosine", "constant": "constant",
    "constant_with_warmup": "constant", "cosine_with_min_lr": "cosine",
}  # fmt: skip


def programs(name: str) -> tuple[str, ...]:
    """The programs of TRL: its command, and the scripts of its repository."""
    scripts = [f"{folder}/{name}*.py" for folder in ("examples/scripts", "trl/scripts")]
    own = [f"trl {name}", f"trl.scripts.{name}", *scripts, *(f"*/{path}" for path in scripts)]
    return tuple(own)


@dataclass(frozen=True, slots=True)
class Batches:
    """The units of TRL's batches.

    Attributes:
        updates: Optimizer steps per step of ours.
    """

    updates: int = 1

    def steps(self, theirs: float) -> int:
        """The number of our steps for their optimizer steps, at least 1."""
        return max(1, math.ceil(theirs / self.updates))


def rows_per_update(flat: Tree) -> int:
    """The rows of an update, of all processes and accumulation steps together."""
    rows: int = flat.pop("per_device_train_batch_size") * flat.pop("num_processes")
    return rows * int(flat["gradient_accumulation_steps"])


def data(flat: Tree, migration: Migration) -> None:
    train, test = flat.pop("dataset_train_split"), flat.pop("dataset_test_split")
    name = flat.pop("dataset_name", None)
    if not isinstance(name, str | None):
        raise ValueError(
            f"dataset_name={name}: it must be a name; give it as an override, dataset_name=NAME"
        )
    if name is not None:
        migration.set("data.train", _split(name, train))
    if (subset := flat.pop("dataset_config", None)) is not None:
        migration.note("dataset_config", subset, "name a file, or a dataset without configurations")
    if flat["eval_strategy"] not in ("no", False) and name is not None:
        migration.set("trainer.validation.data", _split(name, test))


def _split(name: str, split: str) -> str:
    return name if "." in name.rpartition("/")[2] else f"{name}@{split}"


def processes(flat: Tree, migration: Migration) -> None:
    if flat["num_processes"] == 1:
        migration.note(
            "num_processes", 1, "batches are counted for one process; with several, add "
            "num_processes=N",
        )  # fmt: skip


def has_any(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return the rule that a configuration is a trainer's if it has one of these keys."""

    def is_theirs(given: Mapping[str, Any]) -> bool:
        return any(name in given for name in names)

    return is_theirs


def optimizer(flat: Tree, migration: Migration) -> None:
    if flat["weight_decay"]:
        migration.set("optimizer.decay_norms_and_biases", False)
    migration.set("optimizer.betas", [flat.pop("adam_beta1"), flat.pop("adam_beta2")])
    if (epsilon := flat.pop("adam_epsilon")) != 1e-8:
        migration.note("adam_epsilon", epsilon, "it is 1e-8")
    name = str(flat.pop("optim", "adamw_torch"))
    if "8bit" in name or "bf16" in name:
        migration.set("optimizer.state_dtype", "bfloat16")
        migration.note("optim", name, "AdamW with bfloat16 state")
    elif not name.startswith("adamw"):
        migration.note("optim", name, "AdamW is the optimizer")
    steps, ratio = flat.pop("warmup_steps"), flat.pop("warmup_ratio", 0)
    if 0 < steps < 1:
        ratio = steps
    warmup = float(ratio) if ratio else int(steps)
    migration.set("optimizer.scheduler", {"type": "linear", "warmup_steps": warmup})
    _schedule(flat, migration)
    if flat["max_grad_norm"] == 0:
        migration.note("max_grad_norm", flat.pop("max_grad_norm"), "gradients are clipped, at 1e9")
        migration.set("optimizer.max_grad_norm", 1e9)


def _schedule(flat: Tree, migration: Migration) -> None:
    kind, rate = flat.pop("lr_scheduler_type"), flat["learning_rate"]
    lowest = flat.pop("lr_scheduler_kwargs.min_lr", None)
    share = flat.pop("lr_scheduler_kwargs.min_lr_rate", None)
    if kind not in SCHEDULES:
        migration.note("lr_scheduler_type", kind, "no such schedule here; it is linear")
    schedule = SCHEDULES.get(kind, "linear")
    migration.set("optimizer.scheduler.type", schedule)
    if lowest is not None or share is not None:
        lowest = share * rate if lowest is None else lowest
        set_least_rate(migration, schedule, "lr_scheduler_kwargs.min_lr", lowest)
    for key in [key for key in flat if key.startswith("lr_scheduler_kwargs")]:
        migration.note(key, flat.pop(key), "the schedule has no such choice here")


def model(flat: Tree, migration: Migration) -> None:
    halves, dtype = flat.pop("bf16"), flat.pop("dtype")
    is_half = halves or dtype in ("bfloat16", "auto")
    migration.set("model.dtype", "bfloat16" if is_half else "float32")
    if dtype in ("bfloat16", "auto"):
        migration.note("dtype", dtype, "the optimizer keeps a float32 copy of the weights")
    if (revision := flat.pop("model_revision")) != "main":
        migration.note("model_revision", revision, "give a folder of that revision as model.path")
    rank, alpha, dropout = (flat.pop(f"lora_{name}") for name in ("r", "alpha", "dropout"))
    modules, quantised = flat.pop("lora_target_modules", None), flat.pop("load_in_4bit", False)
    if not flat.pop("use_peft"):
        if quantised:
            migration.note("load_in_4bit", True, "weights are quantised below adapters only")
        return
    if modules is None:
        modules = ["q_proj", "v_proj"]
        migration.note("lora_target_modules", None, "PEFT's choice for such models")
    set_lora(migration, rank, alpha, modules)
    migration.set("model.lora.dropout", dropout)
    if quantised:
        migration.set("model.lora.load_in_4bit", True)


def trainer(flat: Tree, migration: Migration, batches: Batches) -> None:
    """Set the keys of the trainer, whose steps are optimizer steps."""
    epochs, steps = flat.pop("num_train_epochs"), flat.pop("max_steps")
    if steps > 0:
        migration.set("trainer.max_steps", batches.steps(steps))
    else:
        migration.set("trainer.total_epochs", epochs)
    every, strategy = flat.pop("save_steps"), flat.pop("save_strategy")
    saves = strategy == "steps" and every >= 1
    if strategy not in ("steps", "no", False) or (strategy == "steps" and every < 1):
        migration.note("save_strategy", f"{strategy} {every}", "saved after the last step")
    migration.set("trainer.logging_steps", batches.steps(flat.pop("logging_steps")))
    limit = flat.pop("save_total_limit", None)
    if saves and limit is None:
        migration.set("trainer.checkpoints.save_steps", batches.steps(every))
        migration.note("save_total_limit", None, "TRL keeps all checkpoints; the last 2 are kept")
    elif saves:
        set_checkpoints(migration, batches.steps(every), "save_total_limit", limit)
    migration.set("trainer.output_dir", flat.pop("output_dir", "trainer_output"))
    trackers, project, run = (flat.pop(key, None) for key in ("report_to", "project", "run_name"))
    if trackers not in ("none", "all", None):
        names = {"project_name": project, "run_name": run}
        set_tracking(migration, "report_to", trackers, **names)
    elif trackers == "all":
        migration.note("report_to", "all", "name the trackers in trainer.tracking.report_to")


def validation(flat: Tree, migration: Migration, batches: Batches) -> None:
    strategy, every = flat.pop("eval_strategy"), flat.pop("eval_steps", None)
    before = flat.pop("eval_on_start", False)
    if strategy in ("no", False):
        if every is not None:
            migration.note("eval_steps", every, "TRL does not read it: eval_strategy is no")
        return
    given = migration.tree.get("trainer", {}).get("validation")
    if given is None:
        why = "set trainer.validation.data and trainer.validation.steps"
        migration.note("eval_strategy", strategy, why)
        return
    steps = batches.steps(every or flat["logging_steps"]) if strategy == "steps" else 0
    set_validation(migration, given["data"], steps, before)
    if not steps:
        why = "set trainer.validation.steps to the steps of an epoch"
        migration.note("eval_strategy", strategy, why)
