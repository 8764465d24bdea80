"""``mmr1 migrate``: EasyR1's YAML as ours.

EasyR1's own defaults count: a key that the file leaves out has the value that EasyR1 gives it, and
that value is carried over. Every key is carried, or a note says what it meant and why it has no
counterpart.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mmr1.config import Config

Tree = dict[str, Any]

# What EasyR1 takes for a key that its YAML leaves out (its config.py files), where it matters to
# what is sampled and learned.
DEFAULTS: Tree = {
    "data.prompt_key": "prompt",
    "data.answer_key": "answer",
    "data.image_key": "images",
    "data.video_key": "videos",
    "data.video_fps": 2.0,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.rollout_batch_size": 512,
    "data.min_pixels": 262144,
    "data.max_pixels": 4194304,
    "data.seed": 1,
    "algorithm.adv_estimator": "grpo",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.disable_kl": False,
    "algorithm.use_kl_loss": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_coef": 1e-3,
    "algorithm.kl_type": "fixed",
    "algorithm.kl_horizon": 10000.0,
    "algorithm.kl_target": 0.1,
    "algorithm.online_filtering": False,
    "algorithm.filter_key": "overall",
    "algorithm.filter_low": 0.01,
    "algorithm.filter_high": 0.99,
    "worker.actor.global_batch_size": 256,
    "worker.actor.max_grad_norm": 1.0,
    "worker.actor.clip_ratio_low": 0.2,
    "worker.actor.clip_ratio_high": 0.3,
    "worker.actor.clip_ratio_dual": 3.0,
    "worker.actor.tau_positive": 1.0,
    "worker.actor.tau_negative": 1.05,
    "worker.actor.loss_type": "default",
    "worker.actor.loss_avg_mode": "token",
    "worker.actor.ppo_epochs": 1,
    "worker.actor.optim.lr": 1e-6,
    "worker.actor.optim.betas": [0.9, 0.999],
    "worker.actor.optim.weight_decay": 1e-2,
    "worker.actor.optim.strategy": "adamw",
    "worker.actor.optim.lr_warmup_ratio": 0.0,
    "worker.actor.optim.lr_scheduler_type": "constant",
    "worker.critic.global_batch_size": 256,
    "worker.critic.cliprange_value": 0.5,
    "worker.critic.loss_avg_mode": "token",
    "worker.critic.ppo_epochs": 1,
    "worker.critic.optim.lr": 1e-6,
    "worker.rollout.n": 1,
    "worker.rollout.temperature": 1.0,
    "worker.rollout.top_p": 1.0,
    "worker.rollout.top_k": -1,
    "trainer.total_epochs": 15,
    "trainer.max_try_make_batch": 20,
    "trainer.critic_warmup": 0,
    "trainer.val_freq": -1,
    "trainer.val_before_train": True,
    "trainer.save_freq": -1,
    "trainer.save_limit": -1,
    "trainer.project_name": "easy_r1",
    "trainer.experiment_name": "demo",
    "trainer.logger": ["console", "wandb"],
}

# Their key -> our key, where the value stays the same.
RENAMED = {
    "data.train_files": "data.train",
    "data.val_files": "data.eval",
    "data.image_dir": "data.media_root",
    "data.video_fps": "data.video_fps",
    "data.override_chat_template": "data.chat_template",
    "data.seed": "seed",
    "data.max_response_length": "rollout.sampling.max_tokens",
    "worker.actor.max_grad_norm": "optimizer.max_grad_norm",
    "worker.actor.model.model_path": "model.path",
    "worker.actor.model.freeze_vision_tower": "model.freeze_vision_tower",
    "worker.actor.model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "worker.actor.optim.lr": "optimizer.lr",
    "worker.actor.optim.betas": "optimizer.betas",
    "worker.actor.optim.weight_decay": "optimizer.weight_decay",
    "worker.actor.optim.lr_scheduler_type": "optimizer.lr_scheduler_type",
    "worker.actor.ppo_epochs": "algorithm.ppo_epochs",
    "worker.rollout.n": "rollout.n",
    "worker.rollout.temperature": "rollout.sampling.temperature",
    "worker.rollout.top_p": "rollout.sampling.top_p",
    "worker.rollout.gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": "rollout.tensor_parallel_size",
    "worker.reward.num_cpus": "rewards.workers",
    "trainer.project_name": "trainer.project_name",
}

# Their key -> our key and the values' names, where these differ.
TRANSLATED: dict[str, tuple[str, dict[str, str]]] = {
    "worker.actor.loss_avg_mode": (
        "algorithm.loss_agg_mode",
        {"token": "token-mean", "seq": "seq-mean-token-mean"},
    ),
    "worker.rollout.dtype": (
        "rollout.dtype",
        {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"},
    ),
    "worker.actor.optim.strategy": (
        "optimizer.state_dtype",
        {"adamw": "float32", "adamw_bf16": "bfloat16"},
    ),
}

# Advantages of the group, which go with any loss; and those with an algorithm of their own.
ESTIMATORS = {"grpo": None, "rloo": "rloo", "grpo_passk": "pass_at_k"}
OWN_ALGORITHMS = {"remax": "remax", "reinforce_plus_plus": "reinforce_pp", "gae": "ppo"}
LOSSES = {
    "default": "grpo", "gspo": "gspo", "gspo_token": "gspo", "cispo": "cispo", "sapo": "sapo",
}  # fmt: skip
KL = {"kl": "k1", "abs": "absolute", "mse": "k2", "low_var_kl": "k3"}

# Keys that are carried over together with others, and how: for docs/migration.md.
COMPOSED = {
    "data.prompt_key": "rename the column to problem",
    "data.answer_key": "rename the column to answer",
    "data.image_key": "rename the column to images",
    "data.video_key": "rename the column to videos",
    "data.max_prompt_length": "`rollout.max_model_len`: prompt and completion together",
    "data.rollout_batch_size": "`rollout.batch_size`",
    "data.min_pixels": "`data.image_min_pixels` and `data.video_min_pixels`",
    "data.max_pixels": "`data.image_max_pixels` and `data.video_max_pixels`",
    "data.format_prompt": "`data.prompt_template`; the variable content is called question",
    "algorithm.adv_estimator": "`algorithm.name`, or `algorithm.adv_estimator` under another loss",
    "algorithm.gamma": "`algorithm.gamma` for REINFORCE++, `algorithm.critic.gamma` for PPO",
    "algorithm.lam": "`algorithm.critic.lam`",
    "algorithm.disable_kl": "`algorithm.kl_coef=0`",
    "algorithm.use_kl_loss": "`algorithm.use_kl_loss`",
    "algorithm.kl_penalty": "`algorithm.kl_estimator`: kl is k1, mse is k2, low_var_kl is k3",
    "algorithm.kl_coef": "`algorithm.kl_coef`",
    "algorithm.kl_type": "adaptive: `algorithm.kl_target` is set",
    "algorithm.kl_horizon": "`algorithm.kl_adaptation_rate`: completions per step / horizon",
    "algorithm.kl_target": "`algorithm.kl_target`",
    "algorithm.online_filtering": "`algorithm.dynamic_sampling`",
    "algorithm.filter_key": "`algorithm.filter_key`",
    "algorithm.filter_low": "`algorithm.filter_low`",
    "algorithm.filter_high": "`algorithm.filter_high`",
    "worker.actor.global_batch_size": "`algorithm.ppo_mini_batch_size`, in prompts too",
    "worker.actor.clip_ratio_low": "`algorithm.clip_ratio_low`",
    "worker.actor.clip_ratio_high": "`algorithm.clip_ratio_high`",
    "worker.actor.clip_ratio_dual": "`algorithm.clip_ratio_dual`",
    "worker.actor.tau_positive": "`algorithm.sapo_tau`",
    "worker.actor.tau_negative": "`algorithm.sapo_tau`",
    "worker.actor.loss_type": "`algorithm.name`; gspo_token is gspo, with the same gradient",
    "worker.actor.model.lora.rank": "`model.lora.rank`; 0: no adapters",
    "worker.actor.model.lora.alpha": "`model.lora.alpha`",
    "worker.actor.model.lora.target_modules": "`model.lora.target_modules`",
    "worker.actor.model.lora.exclude_modules": "visual: `model.freeze_vision_tower`",
    "worker.actor.optim.lr_warmup_ratio": "`optimizer.warmup_ratio`",
    "worker.actor.optim.lr_warmup_steps": "`optimizer.warmup_steps`, times the updates per rollout",
    "worker.actor.optim.min_lr_ratio": "`optimizer.min_lr`, times lr",
    "worker.critic.global_batch_size": "`algorithm.critic.ppo_mini_batch_size`",
    "worker.critic.cliprange_value": "`algorithm.critic.cliprange_value`",
    "worker.critic.loss_avg_mode": "none: the critic's loss is the mean over tokens",
    "worker.critic.ppo_epochs": "`algorithm.critic.ppo_epochs`",
    "worker.critic.optim.lr": "`algorithm.critic.lr`",
    "worker.critic.model.model_path": "`algorithm.critic.path`",
    "worker.rollout.top_k": "`rollout.sampling.top_k`",
    "worker.rollout.max_model_len": "`rollout.max_model_len`",
    "worker.rollout.val_override_config.temperature": "`eval.temperature`",
    "worker.rollout.val_override_config.n": "`eval.n`",
    "worker.rollout.val_override_config.top_p": "none: `rollout.sampling.top_p`",
    "worker.reward.reward_function": "`rewards.functions`",
    "worker.reward.reward_function_kwargs": "`rewards.functions`: its options",
    "trainer.total_epochs": "`trainer.max_epochs`, unless max_steps is set",
    "trainer.max_steps": "`trainer.max_steps`",
    "trainer.max_try_make_batch": "`algorithm.max_num_gen_batches`",
    "trainer.critic_warmup": "`algorithm.critic.warmup_steps`",
    "trainer.val_freq": "`trainer.val_freq`",
    "trainer.val_before_train": "`trainer.val_before_train`",
    "trainer.save_freq": "`trainer.save_steps`",
    "trainer.save_limit": "`trainer.save_total_limit`, 2 or more",
    "trainer.save_model_only": "none: checkpoints always hold the optimizer",
    "trainer.save_checkpoint_path": "`trainer.output_dir`",
    "trainer.load_checkpoint_path": "none: mmr1 train --resume continues a run",
    "trainer.experiment_name": "`trainer.output_dir`: runs/NAME",
    "trainer.logger": "`trainer.trackers`",
}

# Keys without a counterpart, or sections of such keys, and why there is none.
UNNEEDED = {
    "data.shuffle": "the data are always shuffled, by seed",
    "data.filter_overlong_prompts": "prompts that are too long are always left out, and listed",
    "data.filter_overlong_prompts_workers": "prompts are measured without worker processes",
    "data.val_batch_size": "eval.batch_size bounds the prompts per call, not the result",
    "data.mini_rollout_batch_size": "algorithm.oversample sets the prompts per draw",
    "worker.actor.padding_free": "sequences are always packed",
    "worker.actor.dynamic_batching": "micro-batches are always cut by tokens",
    "worker.actor.use_torch_compile": "nothing is compiled",
    "worker.actor.strategy": "more than one rank always runs on FSDP2",
    "worker.actor.fsdp": "resources.ranks and resources.fsdp_size shard the model",
    "worker.actor.offload": "optimizer.offload keeps the optimizer in main memory",
    "worker.actor.micro_batch_size_per_device_for_update": "see trainer.micro_batch_tokens",
    "worker.actor.micro_batch_size_per_device_for_experience": "see trainer.micro_batch_tokens",
    "worker.actor.ulysses_size": "sequences are not cut across devices",
    "worker.actor.ulysses_sequence_parallel_size": "sequences are not cut across devices",
    "worker.actor.model.trust_remote_code": "code of a model's repository is never run",
    "worker.actor.model.tokenizer_path": "the tokenizer is that of model.path",
    "worker.rollout.name": "rollout.engine is vllm unless it is set",
    "worker.rollout.seed": "seed is that of everything",
    "worker.rollout.limit_images": "the number of images is not limited",
    "worker.rollout.enforce_eager": "a matter of speed alone",
    "worker.rollout.enable_chunked_prefill": "a matter of speed alone",
    "worker.rollout.max_num_batched_tokens": "a matter of speed alone",
    "worker.rollout.disable_log_stats": "a matter of display alone",
    "worker.rollout.disable_tqdm": "a matter of display alone",
    "worker.ref": "algorithm.offload_reference keeps the reference in main memory",
    "worker.reward.reward_type": "the function's parameters, or its REWARD_TYPE, tell",
    "worker.reward.skip_special_tokens": "completions are always given without special tokens",
    "trainer.n_gpus_per_node": "resources.ranks and resources.engines name the processes",
    "trainer.nnodes": "resources.ranks and resources.engines name the processes",
    "trainer.val_generations_to_log": "all completions of a validation are kept",
    "trainer.val_only": "mmr1 eval evaluates without training",
    "trainer.find_last_checkpoint": "mmr1 train --resume continues a run",
    "trainer.ray_timeline": "there is no such file",
}

USUAL_COLUMNS = {
    "data.prompt_key": "problem",
    "data.answer_key": "answer",
    "data.image_key": "images",
    "data.video_key": "videos",
}
TRACKERS = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
NO_LIMIT = 1_000_000


@dataclass(slots=True)
class Migration:
    """A migrated configuration.

    Attributes:
        tree: Our configuration, with the keys that theirs sets or takes for granted.
        notes: What the user should check.
        theirs: Their settings of the loss, as EasyR1 reads them, by key.
    """

    tree: Tree = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    theirs: Tree = field(default_factory=dict)

    def set(self, key: str, value: Any) -> None:
        """Set ``a.b.c``."""
        *sections, name = key.split(".")
        section = self.tree
        for name_of_section in sections:
            section = section.setdefault(name_of_section, {})
        section[name] = value

    def note(self, key: str, value: Any, why: str) -> None:
        """Something that is not carried over as it is."""
        self.notes.append(f"{key}: {value!r}: {why}")


def migrate(theirs: Mapping[str, Any]) -> Migration:
    """EasyR1's configuration as ours.

    Raises:
        ValueError: It is not a configuration of EasyR1, or one of its values is not valid here.
    """
    given = _flat(theirs)
    if not any(key.startswith("worker.") for key in given):
        raise ValueError(
            "this is no EasyR1 configuration: there is no 'worker' section; docs/migration.md has "
            "tables for other projects"
        )
    if "trainer.total_episodes" in given:  # the older name
        given.setdefault("trainer.total_epochs", given.pop("trainer.total_episodes"))
    flat = {key: value for key, value in {**DEFAULTS, **given}.items() if value is not None}
    migration = Migration(theirs={k: v for k, v in flat.items() if k in LOSS_SETTINGS})
    migration.set("data.format", "easyr1")
    for special in (
        _algorithm, _kl, _filter, _batches, _lora, _schedule, _lengths, _validation, _reward,
        _columns, _template, _logging, _steps,
    ):  # fmt: skip
        special(flat, migration)
    for key, ours in RENAMED.items():
        if key in flat:
            migration.set(ours, flat.pop(key))
    for key, (ours, names) in TRANSLATED.items():
        if key in flat:
            _translate(migration, key, flat.pop(key), ours, names)
    for key, value in flat.items():
        _note_what_is_left(key, value, key in given, migration)
    _check(migration)
    return migration


def _note_what_is_left(key: str, value: Any, is_given: bool, migration: Migration) -> None:
    """A key that no part of the migration has taken."""
    for name, why in UNNEEDED.items():
        if key == name or key.startswith(f"{name}."):
            migration.note(key, value, f"not needed; {why}")
            return
    if is_given:
        migration.note(key, value, "has no counterpart and is left out")


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
        migration.note(key, value, f"has no counterpart; {ours} keeps its default")


def _algorithm(flat: Tree, migration: Migration) -> None:
    """Their advantage and their loss are two keys; ours is an algorithm, with another advantage."""
    estimator, loss = flat.pop("algorithm.adv_estimator"), flat.pop("worker.actor.loss_type")
    if estimator in OWN_ALGORITHMS:
        name = OWN_ALGORITHMS[estimator]
        if loss != "default":
            migration.note("worker.actor.loss_type", loss, f"{name} has PPO's clipped loss here")
        if name != "remax":
            migration.note(
                "algorithm.adv_estimator",
                estimator,
                "advantages of N tokens are divided by the population's deviation, in EasyR1 by "
                "the sample's, which is larger by sqrt(N / (N - 1))",
            )
    elif estimator in ESTIMATORS:
        name = LOSSES.get(loss, "grpo")
        if ESTIMATORS[estimator] is not None:
            migration.set("algorithm.adv_estimator", ESTIMATORS[estimator])
        if loss not in LOSSES:
            migration.note("worker.actor.loss_type", loss, "no such loss here; it is the clipped")
        if loss == "gspo_token":
            migration.note(
                "worker.actor.loss_type",
                loss,
                "gspo, which has the same gradient: all tokens of a completion have one advantage",
            )
    else:
        raise ValueError(
            f"algorithm.adv_estimator: '{estimator}' has no counterpart; it can be one of "
            f"{', '.join([*ESTIMATORS, *OWN_ALGORITHMS])}"
        )
    migration.set("algorithm.name", name)
    clip = [flat.pop(f"worker.actor.clip_ratio_{bound}", None) for bound in ("low", "high", "dual")]
    taus = [flat.pop(f"worker.actor.tau_{sign}") for sign in ("positive", "negative")]
    if name == "sapo":
        migration.set("algorithm.sapo_tau", taus)
    else:
        migration.set("algorithm.clip_ratio_low", clip[0])
        migration.set("algorithm.clip_ratio_high", clip[1])
        if name != "cispo":
            migration.set("algorithm.clip_ratio_dual", clip[2])
    if flat["worker.actor.loss_avg_mode"] == "seq":
        migration.note(
            "worker.actor.loss_avg_mode",
            "seq",
            "the mean over completions; EasyR1 weighs each micro-batch's mean by its tokens",
        )
    _critic(flat, migration, name)


def _critic(flat: Tree, migration: Migration, name: str) -> None:
    gamma, lam = flat.pop("algorithm.gamma"), flat.pop("algorithm.lam")
    warmup = flat.pop("trainer.critic_warmup")
    own = {key: flat.pop(key) for key in list(flat) if key.startswith("worker.critic.")}
    if name != "ppo":
        if name == "reinforce_pp":
            migration.set("algorithm.gamma", gamma)
        return
    path = own.pop("worker.critic.model.model_path", None)
    size, sampled = own.pop("worker.critic.global_batch_size"), flat["data.rollout_batch_size"]
    critic = {
        "path": path,
        "lr": own.pop("worker.critic.optim.lr"),
        "gamma": gamma,
        "lam": lam,
        "cliprange_value": own.pop("worker.critic.cliprange_value"),
        "ppo_epochs": own.pop("worker.critic.ppo_epochs"),
        "ppo_mini_batch_size": min(size, sampled),
        "warmup_steps": warmup,
    }
    migration.set("algorithm.critic", {k: v for k, v in critic.items() if v is not None})
    if own.pop("worker.critic.loss_avg_mode") != "token":
        migration.note("worker.critic.loss_avg_mode", "seq", "the critic's loss is per token here")
    for key, value in own.items():
        migration.note(key, value, "the critic shares the policy's settings, or needs none")


def _kl(flat: Tree, migration: Migration) -> None:
    keys = ("disable_kl", "use_kl_loss", "kl_penalty", "kl_coef", "kl_type", "kl_horizon")
    off, in_loss, penalty, coef, kind, horizon = (flat.pop(f"algorithm.{key}") for key in keys)
    target = flat.pop("algorithm.kl_target")
    if off or coef == 0:
        migration.set("algorithm.kl_coef", 0.0)
        return
    migration.set("algorithm.kl_coef", coef)
    migration.set("algorithm.use_kl_loss", in_loss)
    if penalty not in KL:
        migration.note("algorithm.kl_penalty", penalty, "not computed there as a KL; it is k1")
    migration.set("algorithm.kl_estimator", KL.get(penalty, "k1"))
    if kind == "adaptive" and not in_loss:
        completions = flat["data.rollout_batch_size"] * flat["worker.rollout.n"]
        migration.set("algorithm.kl_target", target)
        migration.set("algorithm.kl_adaptation_rate", completions / horizon)
        migration.note(
            "algorithm.kl_type", kind, "adapts to the mean of k3 per token, not of the penalty"
        )


def _filter(flat: Tree, migration: Migration) -> None:
    key, low, high = (flat.pop(f"algorithm.filter_{name}") for name in ("key", "low", "high"))
    tries = flat.pop("trainer.max_try_make_batch")
    if not flat.pop("algorithm.online_filtering"):
        return
    migration.set("algorithm.dynamic_sampling", True)
    migration.set("algorithm.filter_key", "overall")
    migration.set("algorithm.filter_low", low)
    migration.set("algorithm.filter_high", high)
    migration.set("algorithm.max_num_gen_batches", tries if tries > 0 else NO_LIMIT)
    if key != "overall":
        migration.note(
            "algorithm.filter_key",
            key,
            "the groups are filtered by the whole reward; give that score a reward function of its "
            "own in rewards.functions, with weight 0, and name it in algorithm.filter_key",
        )
    migration.note(
        "trainer.max_try_make_batch", tries, "after so many draws a step uses the groups it has"
    )


def _batches(flat: Tree, migration: Migration) -> None:
    """Mini-batches are counted in prompts, there as here."""
    sampled, updated = flat["data.rollout_batch_size"], flat.pop("worker.actor.global_batch_size")
    migration.set("rollout.batch_size", flat.pop("data.rollout_batch_size"))
    if updated < sampled:
        migration.set("algorithm.ppo_mini_batch_size", updated)


def _lora(flat: Tree, migration: Migration) -> None:
    rank = flat.pop("worker.actor.model.lora.rank", 0)
    alpha = flat.pop("worker.actor.model.lora.alpha", 16)
    modules = flat.pop("worker.actor.model.lora.target_modules", "all-linear")
    excluded = flat.pop("worker.actor.model.lora.exclude_modules", None)
    if not rank:
        return
    if isinstance(modules, str) and "," in modules:
        modules = [name.strip() for name in modules.split(",") if name.strip()]
    elif modules != "all-linear" and isinstance(modules, str):
        modules = [modules]
    lora = {"rank": rank, "alpha": alpha, "target_modules": modules}
    migration.set("model.lora", lora)
    if excluded is not None and "visual" in str(excluded):
        flat["worker.actor.model.freeze_vision_tower"] = True  # and has no adapters then
    elif excluded is not None:
        migration.note(
            "worker.actor.model.lora.exclude_modules", excluded, "name the others instead, in "
            "model.lora.target_modules",
        )  # fmt: skip


def _schedule(flat: Tree, migration: Migration) -> None:
    """Their schedule counts rollouts, ours optimizer steps."""
    algorithm = migration.tree["algorithm"]
    sampled = migration.tree["rollout"]["batch_size"]
    size = algorithm.get("ppo_mini_batch_size", sampled)
    updates = flat["worker.actor.ppo_epochs"] * (sampled // size)
    ratio = flat.pop("worker.actor.optim.lr_warmup_ratio")
    steps = flat.pop("worker.actor.optim.lr_warmup_steps", None)
    if steps is None and ratio:
        migration.set("optimizer.warmup_ratio", ratio)
    else:
        migration.set("optimizer.warmup_steps", (steps or 0) * updates)
    lowest = flat.pop("worker.actor.optim.min_lr_ratio", None)
    if lowest is not None:
        migration.set("optimizer.min_lr", lowest * flat["worker.actor.optim.lr"])


def _lengths(flat: Tree, migration: Migration) -> None:
    """Prompt and completion limits become one window and one completion limit."""
    window = flat.pop("data.max_prompt_length") + flat["data.max_response_length"]
    migration.set("rollout.max_model_len", flat.pop("worker.rollout.max_model_len", window))
    if (top_k := flat.pop("worker.rollout.top_k")) > 0:
        migration.set("rollout.sampling.top_k", top_k)


def _validation(flat: Tree, migration: Migration) -> None:
    prefix = "worker.rollout.val_override_config"
    flat.pop(prefix, None)
    temperature = flat["worker.rollout.temperature"]
    migration.set("eval.temperature", flat.pop(f"{prefix}.temperature", temperature))
    migration.set("eval.n", flat.pop(f"{prefix}.n", 1))
    top_p = flat.pop(f"{prefix}.top_p", flat["worker.rollout.top_p"])
    if top_p != flat["worker.rollout.top_p"]:
        migration.note(f"{prefix}.top_p", top_p, "sampled as in training, by rollout.sampling")
    every, before = flat.pop("trainer.val_freq"), flat.pop("trainer.val_before_train")
    if "data.val_files" in flat:
        migration.set("trainer.val_freq", max(0, every))
        migration.set("trainer.val_before_train", before)


def _reward(flat: Tree, migration: Migration) -> None:
    spec = flat.pop("worker.reward.score_function", None)
    spec = flat.pop("worker.reward.reward_function", None) or spec
    options = flat.pop("worker.reward.reward_function_kwargs", None)
    if spec:
        use = spec if ":" in spec else f"{spec}:main"
        function = {"use": use, **({"options": options} if options else {})}
        migration.set("rewards.functions", {"easyr1": function})


def _columns(flat: Tree, migration: Migration) -> None:
    for key, usual in USUAL_COLUMNS.items():
        if (name := flat.pop(key)) != usual:
            migration.notes.append(f"{key}: rename the column '{name}' of the data to '{usual}'")


def _template(flat: Tree, migration: Migration) -> None:
    if path := flat.pop("data.format_prompt", None):
        migration.set("data.prompt_template", path)
        migration.notes.append(
            f"data.prompt_template: in {path}, 'content' is called 'question' here"
        )
    for bound in ("min_pixels", "max_pixels"):
        if value := flat.pop(f"data.{bound}", None):
            for kind in ("image", "video"):
                migration.set(f"data.{kind}_{bound}", value)


def _logging(flat: Tree, migration: Migration) -> None:
    loggers = flat.pop("trainer.logger")
    loggers = [loggers] if isinstance(loggers, str) else list(loggers)
    migration.set("trainer.trackers", [name for name in loggers if name in TRACKERS])
    for name in loggers:
        if name not in (*TRACKERS, "console", "file"):
            migration.note("trainer.logger", name, "no such tracker here")
    name = flat.pop("trainer.experiment_name")
    migration.set("trainer.output_dir", flat.pop("trainer.save_checkpoint_path", f"runs/{name}"))
    migration.set("trainer.save_steps", max(0, flat.pop("trainer.save_freq")))
    limit = flat.pop("trainer.save_limit")
    if limit >= 2:
        migration.set("trainer.save_total_limit", limit)
    else:
        migration.note("trainer.save_limit", limit, "at least 2 checkpoints are kept, 2 by default")
    if flat.pop("trainer.save_model_only", False):
        migration.note("trainer.save_model_only", True, "checkpoints always hold the optimizer too")


def _steps(flat: Tree, migration: Migration) -> None:
    """Their ``max_steps`` counts rollouts, as ours does, and comes before the epochs."""
    epochs, steps = flat.pop("trainer.total_epochs"), flat.pop("trainer.max_steps", None)
    if steps is None:
        migration.set("trainer.max_epochs", epochs)
        migration.note(
            "trainer.total_epochs", epochs, "an epoch ends with the last rows, EasyR1 drops them"
        )
    else:
        migration.set("trainer.max_steps", steps)


LOSS_SETTINGS = {
    "algorithm.adv_estimator": ("algorithm.name", "algorithm.adv_estimator"),
    "worker.actor.loss_type": ("algorithm.importance_sampling_level",),
    "worker.actor.loss_avg_mode": ("algorithm.loss_agg_mode",),
    "worker.actor.clip_ratio_low": ("algorithm.clip_ratio_low",),
    "worker.actor.clip_ratio_high": ("algorithm.clip_ratio_high",),
    "worker.actor.clip_ratio_dual": ("algorithm.clip_ratio_dual",),
    "worker.actor.tau_positive": ("algorithm.sapo_tau",),
    "worker.actor.tau_negative": ("algorithm.sapo_tau",),
    "algorithm.disable_kl": ("algorithm.kl_coef",),
    "algorithm.kl_coef": ("algorithm.kl_coef",),
    "algorithm.use_kl_loss": ("algorithm.use_kl_loss",),
    "algorithm.kl_penalty": ("algorithm.kl_estimator",),
    "data.rollout_batch_size": ("rollout.batch_size",),
    "worker.actor.global_batch_size": ("algorithm.ppo_mini_batch_size",),
    "worker.actor.ppo_epochs": ("algorithm.ppo_epochs",),
    "worker.rollout.n": ("rollout.n",),
    "worker.rollout.temperature": ("rollout.sampling.temperature",),
}
"""What ``--check`` shows: their key, and where its meaning is here."""


def comparison(migration: Migration) -> list[str]:
    """The settings of the loss side by side: theirs as EasyR1 reads them, ours as mmr1 does."""
    ours = Config.model_validate(migration.tree).model_dump()
    rows = [("EasyR1", "", "mmr1", "")]
    for key, names in LOSS_SETTINGS.items():
        values = ", ".join(str(_at(ours, name)) for name in names)
        theirs = migration.theirs.get(key)
        rows.append((key, str(theirs), ", ".join(n.rpartition(".")[2] for n in names), values))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _at(tree: Tree, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


def _check(migration: Migration) -> None:
    try:
        Config.model_validate(migration.tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"the migrated '{key}' is not valid here: {first['msg']}") from error


def with_overrides(theirs: Mapping[str, Any], overrides: Sequence[str]) -> Tree:
    """Their configuration with the ``a.b=value`` of a command line, as EasyR1's scripts have them.

    Raises:
        ValueError: One has no ``=``.
    """
    tree = copy.deepcopy(dict(theirs))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"'{override}' is no override; write it as key=value")
        *sections, name = key.split(".")
        section = tree
        for section_name in sections:
            section = section.setdefault(section_name, {})
        value = yaml.safe_load(text)
        both = isinstance(value, dict) and isinstance(section.get(name), dict)
        section[name] = {**section[name], **value} if both else value
    return tree


def migrate_file(path: Path, overrides: Sequence[str] = (), *, check: bool = False) -> str:
    """The migrated YAML, with the notes as comments at the top.

    With ``check`` the settings of the loss side by side instead, and the notes.

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
        migration = migrate(with_overrides(theirs, overrides))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if check:
        return "".join(f"{line}\n" for line in [*comparison(migration), "", *migration.notes])
    notes = "".join(f"# {note}\n" for note in [f"from {path}", *migration.notes])
    return notes + yaml.safe_dump(migration.tree, sort_keys=False, allow_unicode=True)
