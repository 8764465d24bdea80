"""``mmr1 migrate``: EasyR1's YAML as ours. Keys without a counterpart are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mmr1.config import Config

Tree = dict[str, Any]

# Their key -> our key, where the value stays the same.
RENAMED = {
    "data.train_files": "data.train",
    "data.val_files": "data.eval",
    "data.image_dir": "data.media_root",
    "data.video_fps": "data.video_fps",
    "data.seed": "seed",
    "data.max_response_length": "rollout.sampling.max_tokens",
    "algorithm.kl_coef": "algorithm.kl_coef",
    "algorithm.online_filtering": "algorithm.dynamic_sampling",
    "worker.actor.clip_ratio_low": "algorithm.clip_ratio_low",
    "worker.actor.clip_ratio_high": "algorithm.clip_ratio_high",
    "worker.actor.clip_ratio_dual": "algorithm.clip_ratio_dual",
    "worker.actor.max_grad_norm": "optimizer.max_grad_norm",
    "worker.actor.model.model_path": "model.path",
    "worker.actor.model.freeze_vision_tower": "model.freeze_vision_tower",
    "worker.actor.optim.lr": "optimizer.lr",
    "worker.actor.optim.betas": "optimizer.betas",
    "worker.actor.optim.weight_decay": "optimizer.weight_decay",
    "worker.actor.optim.lr_warmup_steps": "optimizer.warmup_steps",
    "worker.rollout.n": "rollout.n",
    "worker.rollout.temperature": "rollout.sampling.temperature",
    "worker.rollout.top_p": "rollout.sampling.top_p",
    "worker.rollout.gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": "rollout.tensor_parallel_size",
    "worker.rollout.val_override_config.temperature": "eval.temperature",
    "worker.rollout.val_override_config.n": "eval.n",
    "worker.reward.num_cpus": "rewards.workers",
    "trainer.project_name": "trainer.project_name",
    "trainer.save_freq": "trainer.save_steps",
    "trainer.save_limit": "trainer.save_total_limit",
}

# Their key -> our key and the values' names, where these differ.
TRANSLATED: dict[str, tuple[str, dict[str, str]]] = {
    "algorithm.adv_estimator": (
        "algorithm.name",
        {"grpo": "grpo", "rloo": "rloo", "remax": "remax", "reinforce_plus_plus": "reinforce_pp"},
    ),
    "algorithm.kl_penalty": (
        "algorithm.kl_estimator",
        {"kl": "k1", "abs": "absolute", "mse": "k2", "low_var_kl": "k3"},
    ),
    "worker.actor.loss_avg_mode": (
        "algorithm.loss_agg_mode",
        {"token": "token-mean", "seq": "seq-mean-token-mean"},
    ),
    "worker.rollout.dtype": (
        "rollout.dtype",
        {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"},
    ),
    "worker.actor.loss_type": ("algorithm.name", {"gspo": "gspo", "cispo": "cispo"}),
}

# Keys that mmr1 does not need: memory and devices are handled in another way, or it always does it.
UNNEEDED = (
    "data.shuffle", "data.filter_overlong_prompts", "data.filter_overlong_prompts_workers",
    "data.val_batch_size", "data.mini_rollout_batch_size", "worker.actor.padding_free",
    "worker.actor.dynamic_batching", "worker.actor.use_torch_compile", "worker.actor.fsdp",
    "worker.actor.offload", "worker.actor.model.enable_gradient_checkpointing",
    "worker.actor.model.trust_remote_code", "worker.actor.optim.strategy",
    "worker.actor.micro_batch_size_per_device_for_update",
    "worker.actor.micro_batch_size_per_device_for_experience",
    "worker.actor.ulysses_sequence_parallel_size", "worker.rollout.enforce_eager",
    "worker.rollout.enable_chunked_prefill", "worker.rollout.max_num_batched_tokens",
    "worker.rollout.disable_tqdm", "worker.rollout.limit_images", "worker.ref",
    "worker.reward.reward_type", "worker.reward.skip_special_tokens",
    "trainer.val_generations_to_log", "trainer.val_only", "trainer.experiment_name",
)  # fmt: skip

USUAL_COLUMNS = {
    "data.prompt_key": "problem",
    "data.answer_key": "answer",
    "data.image_key": "images",
    "data.video_key": "videos",
}


@dataclass(slots=True)
class Migration:
    """A migrated configuration.

    Attributes:
        tree: Our configuration, with the keys that theirs sets.
        notes: What the user should check.
    """

    tree: Tree = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any) -> None:
        """Set ``a.b.c``."""
        *sections, name = key.split(".")
        section = self.tree
        for name_of_section in sections:
            section = section.setdefault(name_of_section, {})
        section[name] = value


def migrate(theirs: Mapping[str, Any]) -> Migration:
    """EasyR1's configuration as ours.

    Raises:
        ValueError: It is not a configuration of EasyR1, or one of its values is not valid here.
    """
    flat = _flat(theirs)
    if not any(key.startswith("worker.") for key in flat):
        raise ValueError(
            "this is no EasyR1 configuration: there is no 'worker' section; docs/migration.md has "
            "tables for other projects"
        )
    flat = {key: value for key, value in flat.items() if value is not None}
    migration = Migration()
    migration.set("data.format", "easyr1")
    migration.set("optimizer.lr_scheduler_type", "constant")  # EasyR1's, unless it says otherwise
    for key, ours in RENAMED.items():
        if key in flat:
            migration.set(ours, flat.pop(key))
    for key, (ours, names) in TRANSLATED.items():
        if key in flat and flat[key] != "default":
            _translate(migration, key, flat.pop(key), ours, names)
    for special in (_kl, _lengths, _batches, _reward, _columns, _template, _logging, _steps):
        special(flat, migration)
    for key, value in flat.items():
        if not any(key == name or key.startswith(f"{name}.") for name in UNNEEDED):
            migration.notes.append(f"{key}: {value!r} has no counterpart and is left out")
    _check(migration)
    return migration


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value and key != "reward_function_kwargs"
        flat.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


def _translate(
    migration: Migration, key: str, value: Any, ours: str, names: dict[str, str]
) -> None:
    if value in names:
        migration.set(ours, names[value])
    else:
        migration.notes.append(f"{key}: {value!r} has no counterpart; {ours} keeps its default")


def _kl(flat: Tree, migration: Migration) -> None:
    if flat.pop("algorithm.disable_kl", False):
        migration.set("algorithm.kl_coef", 0.0)
    elif flat.pop("algorithm.use_kl_loss", True) is False:
        migration.set("algorithm.use_kl_loss", False)
    flat.pop("algorithm.use_kl_loss", None)


def _lengths(flat: Tree, migration: Migration) -> None:
    """Prompt and completion limits become one window and one completion limit."""
    prompt = flat.pop("data.max_prompt_length", None)
    completion = migration.tree.get("rollout", {}).get("sampling", {}).get("max_tokens")
    if prompt and completion:
        migration.set("rollout.max_model_len", prompt + completion)
    if (top_k := flat.pop("worker.rollout.top_k", -1)) > 0:
        migration.set("rollout.sampling.top_k", top_k)


def _batches(flat: Tree, migration: Migration) -> None:
    """They split the sampled prompts into several updates; here a step is one update."""
    sampled = flat.pop("data.rollout_batch_size", None)
    updated = flat.pop("worker.actor.global_batch_size", None) or sampled
    if updated:
        migration.set("rollout.batch_size", updated)
    updates = sampled // updated if sampled and updated else 1
    if updates > 1:
        migration.notes.append(
            f"{sampled} prompts were sampled for {updates} updates of {updated}; here each update "
            f"samples its own {updated}, so a step of theirs is {updates} of ours"
        )
    if steps := flat.pop("trainer.max_steps", None):
        migration.set("trainer.max_steps", steps * updates)
    if epochs := flat.pop("worker.actor.ppo_epochs", None):
        migration.set("algorithm.ppo_epochs", epochs)


def _reward(flat: Tree, migration: Migration) -> None:
    spec = flat.pop("worker.reward.reward_function", None)
    spec = flat.pop("worker.reward.score_function", None) or spec
    options = flat.pop("worker.reward.reward_function_kwargs", None)
    if spec:
        use = spec if ":" in spec else f"{spec}:compute_score"
        function = {"use": use, **({"options": options} if options else {})}
        migration.set("rewards.functions", {"easyr1": function})


def _columns(flat: Tree, migration: Migration) -> None:
    for key, usual in USUAL_COLUMNS.items():
        if (name := flat.pop(key, usual)) != usual:
            migration.notes.append(f"{key}: rename the column '{name}' of the data to '{usual}'")


def _template(flat: Tree, migration: Migration) -> None:
    if path := flat.pop("data.format_prompt", None):
        migration.set("data.prompt_template", path)
        migration.notes.append(
            f"data.prompt_template: in {path}, 'content' is called 'question' here"
        )
    for key in ("data.min_pixels", "data.max_pixels"):
        if value := flat.pop(key, None):
            migration.notes.append(
                f"{key}: {value} belongs into the model's processor, or the records' media options"
            )


def _logging(flat: Tree, migration: Migration) -> None:
    loggers = flat.pop("trainer.logger", None) or []
    loggers = [loggers] if isinstance(loggers, str) else loggers
    supported = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
    if trackers := [name for name in loggers if name in supported]:
        migration.set("trainer.trackers", trackers)
    name = flat.get("trainer.experiment_name", "run")
    migration.set("trainer.output_dir", flat.pop("trainer.save_checkpoint_path", f"runs/{name}"))
    trainer = migration.tree["trainer"]
    if trainer.get("save_steps", 0) < 0:
        trainer["save_steps"] = 0
    if trainer.get("save_total_limit", 2) < 2:
        del trainer["save_total_limit"]


def _steps(flat: Tree, migration: Migration) -> None:
    epochs = flat.pop("trainer.total_epochs", None) or flat.pop("trainer.total_episodes", None)
    flat.pop("trainer.total_episodes", None)
    steps = migration.tree["trainer"].get("max_steps")
    if steps is None:
        migration.notes.append(
            f"trainer.max_steps: set it to {epochs or 'EPOCHS'} x (rows of data.train) / "
            "rollout.batch_size; runs are counted in steps here"
        )
    ratio = flat.pop("worker.actor.optim.lr_warmup_ratio", None)
    if ratio is not None and steps:
        migration.set("optimizer.warmup_steps", round(ratio * steps))
    elif ratio is not None:
        migration.set("optimizer.warmup_steps", 0)
        if ratio:
            migration.notes.append(f"optimizer.warmup_steps: set it to {ratio} x trainer.max_steps")


def _check(migration: Migration) -> None:
    try:
        Config.model_validate(migration.tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"the migrated '{key}' is not valid here: {first['msg']}") from error


def migrate_file(path: Path) -> str:
    """The migrated YAML, with the notes as comments at the top.

    Raises:
        ValueError: The file cannot be read or is no EasyR1 configuration.
    """
    try:
        theirs = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(theirs, dict):
        raise ValueError(f"{path}: the configuration must be a mapping of keys to values")
    try:
        migration = migrate(theirs)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    notes = "".join(f"# {note}\n" for note in [f"from {path}", *migration.notes])
    return notes + yaml.safe_dump(migration.tree, sort_keys=False, allow_unicode=True)
