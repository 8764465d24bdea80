"""EasyR1's YAML into ours: every key is carried over, or named as left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mmr1.config import Config

Tree = dict[str, Any]

# Theirs -> ours, where the value stays as it is.
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

# Key -> theirs -> ours, where the value has another name.
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

# What mmr1 does without: how memory is used, how devices share the work, what is always done.
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
    """What became of a configuration.

    Attributes:
        tree: Ours, with the keys that theirs set.
        notes: What a person should look at.
    """

    tree: Tree = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any) -> None:
        """Set ``a.b.c``."""
        *sections, name = key.split(".")
        section = self.tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value


def migrate(theirs: Mapping[str, Any]) -> Migration:
    """EasyR1's configuration as ours.

    Raises:
        ValueError: It is none of EasyR1's, or a value of it makes no sense here.
    """
    flat = _flat(theirs)
    if not any(key.startswith("worker.") for key in flat):
        raise ValueError(
            "this is no EasyR1 configuration: there is no 'worker' section; docs/migration.md has "
            "tables for other projects"
        )
    flat = {key: value for key, value in flat.items() if value is not None}
    found = Migration()
    found.set("data.format", "easyr1")
    found.set("optimizer.lr_scheduler_type", "constant")  # EasyR1's, unless it says otherwise
    for key, ours in RENAMED.items():
        if key in flat:
            found.set(ours, flat.pop(key))
    for key, (ours, names) in TRANSLATED.items():
        if key in flat and flat[key] != "default":
            _translate(found, key, flat.pop(key), ours, names)
    for special in (_kl, _lengths, _batches, _reward, _columns, _template, _logging, _steps):
        special(flat, found)
    for key, value in flat.items():
        if not any(key == name or key.startswith(f"{name}.") for name in UNNEEDED):
            found.notes.append(f"{key}: {value!r} has no counterpart and is left behind")
    _check(found)
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value and key != "reward_function_kwargs"
        flat.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


def _translate(found: Migration, key: str, value: Any, ours: str, names: dict[str, str]) -> None:
    if value in names:
        found.set(ours, names[value])
    else:
        found.notes.append(f"{key}: {value!r} has no counterpart; {ours} keeps its default")


def _kl(flat: Tree, found: Migration) -> None:
    if flat.pop("algorithm.disable_kl", False):
        found.set("algorithm.kl_coef", 0.0)
    elif flat.pop("algorithm.use_kl_loss", True) is False:
        found.set("algorithm.use_kl_loss", False)
    flat.pop("algorithm.use_kl_loss", None)


def _lengths(flat: Tree, found: Migration) -> None:
    """Their two limits are one window and one limit here."""
    prompt = flat.pop("data.max_prompt_length", None)
    completion = found.tree.get("rollout", {}).get("sampling", {}).get("max_tokens")
    if prompt and completion:
        found.set("rollout.max_model_len", prompt + completion)
    if (top_k := flat.pop("worker.rollout.top_k", -1)) > 0:
        found.set("rollout.sampling.top_k", top_k)


def _batches(flat: Tree, found: Migration) -> None:
    """They sample many prompts and update on parts of them; here a step is one update."""
    sampled = flat.pop("data.rollout_batch_size", None)
    updated = flat.pop("worker.actor.global_batch_size", None) or sampled
    if updated:
        found.set("rollout.batch_size", updated)
    parts = sampled // updated if sampled and updated else 1
    if parts > 1:
        found.notes.append(
            f"{sampled} prompts were sampled for {parts} updates of {updated}; here each update "
            f"samples its own {updated}, so a step of theirs is {parts} of ours"
        )
    if steps := flat.pop("trainer.max_steps", None):
        found.set("trainer.max_steps", steps * parts)
    if epochs := flat.pop("worker.actor.ppo_epochs", None):
        found.set("algorithm.ppo_epochs", epochs)


def _reward(flat: Tree, found: Migration) -> None:
    spec = flat.pop("worker.reward.reward_function", None)
    spec = flat.pop("worker.reward.score_function", None) or spec
    options = flat.pop("worker.reward.reward_function_kwargs", None)
    if spec:
        use = spec if ":" in spec else f"{spec}:compute_score"
        part = {"use": use, **({"options": options} if options else {})}
        found.set("rewards.functions", {"easyr1": part})


def _columns(flat: Tree, found: Migration) -> None:
    for key, usual in USUAL_COLUMNS.items():
        if (name := flat.pop(key, usual)) != usual:
            found.notes.append(f"{key}: rename the column '{name}' of the data to '{usual}'")


def _template(flat: Tree, found: Migration) -> None:
    if path := flat.pop("data.format_prompt", None):
        found.set("data.prompt_template", path)
        found.notes.append(f"data.prompt_template: in {path}, 'content' is called 'question' here")
    for key in ("data.min_pixels", "data.max_pixels"):
        if value := flat.pop(key, None):
            found.notes.append(
                f"{key}: {value} belongs into the model's processor, or the records' media options"
            )


def _logging(flat: Tree, found: Migration) -> None:
    loggers = flat.pop("trainer.logger", None) or []
    loggers = [loggers] if isinstance(loggers, str) else loggers
    known = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
    if trackers := [name for name in loggers if name in known]:
        found.set("trainer.trackers", trackers)
    name = flat.get("trainer.experiment_name", "run")
    found.set("trainer.output_dir", flat.pop("trainer.save_checkpoint_path", f"runs/{name}"))
    trainer = found.tree["trainer"]
    if trainer.get("save_steps", 0) < 0:
        trainer["save_steps"] = 0
    if trainer.get("save_total_limit", 2) < 2:
        del trainer["save_total_limit"]


def _steps(flat: Tree, found: Migration) -> None:
    epochs = flat.pop("trainer.total_epochs", None) or flat.pop("trainer.total_episodes", None)
    flat.pop("trainer.total_episodes", None)
    steps = found.tree["trainer"].get("max_steps")
    if steps is None:
        found.notes.append(
            f"trainer.max_steps: set it to {epochs or 'EPOCHS'} x (rows of data.train) / "
            "rollout.batch_size; runs are counted in steps here"
        )
    ratio = flat.pop("worker.actor.optim.lr_warmup_ratio", None)
    if ratio is not None and steps:
        found.set("optimizer.warmup_steps", round(ratio * steps))
    elif ratio is not None:
        found.set("optimizer.warmup_steps", 0)
        if ratio:
            found.notes.append(f"optimizer.warmup_steps: set it to {ratio} x trainer.max_steps")


def _check(found: Migration) -> None:
    try:
        Config.model_validate(found.tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"the migrated '{key}' makes no sense here: {first['msg']}") from error


def migrate_file(path: Path) -> str:
    """The migrated YAML, its notes as comments on top.

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
        found = migrate(theirs)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    notes = "".join(f"# {note}\n" for note in [f"from {path}", *found.notes])
    return notes + yaml.safe_dump(found.tree, sort_keys=False, allow_unicode=True)
