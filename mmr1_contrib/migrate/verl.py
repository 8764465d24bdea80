"""verl's ``ppo_trainer`` as ours: the keys that are carried over together with others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.shared import (
    set_checkpoints,
    set_least_rate,
    set_lengths,
    set_lora,
    set_sampled,
    set_schedule,
    set_tracking,
    set_training_files,
    set_validation,
)
from mmr1_contrib.migrate.source import Source
from mmr1_contrib.migrate.verl_keys import (
    ACTOR,
    COMPOSED,
    CORRECTION,
    DEFAULTS,
    DTYPES,
    MODEL,
    OLDER,
    RENAMED,
    ROLLOUT,
    TRANSLATED,
    UNNEEDED,
)
from mmr1_contrib.migrate.verl_loss import (
    carry_algorithm,
    carry_correction,
    carry_distillation,
    carry_filter,
    carry_kl,
)

FETCHES = "parts of a rollout that move the schedule"
"""Not a key of theirs: of recipe/fully_async_policy, whose schedule moves with each of them."""


def _is_theirs(keys: Mapping[str, Any]) -> bool:
    return any(key.startswith("actor_rollout_ref.") for key in keys)


def _fully_async(flat: Tree, migration: Migration) -> None:
    """Set what recipe/fully_async_policy has in place of batches and steps.

    Its trainer takes ``require_batches`` mini-batches at a time. After
    ``trigger_parameter_sync_step`` of these the engine gets the weights: that is one of our steps.
    """
    prefix = "async_training"
    given = {key: flat.pop(key) for key in list(flat) if key.startswith(f"{prefix}.")}
    samples, epochs, every = (
        flat.pop(f"rollout.{name}", default)
        for name, default in (("total_rollout_steps", None), ("total_epochs", 10), ("test_freq", 1))
    )
    if not given and samples is None:
        return

    def of(name: str, default: Any) -> Any:
        return given.get(f"{prefix}.{name}", default)

    taken, synced = of("require_batches", 1), of("trigger_parameter_sync_step", 4)
    batch = taken * synced * flat[f"{ACTOR}.ppo_mini_batch_size"]
    flat |= {"data.train_batch_size": batch, "trainer.test_freq": every, FETCHES: synced}
    flat["trainer.total_training_steps"] = max(1, (100 if samples is None else samples) // batch)
    migration.note("rollout.total_epochs", epochs, "trainer.max_steps ends the run")
    stale, partial = of("staleness_threshold", 0.1), of("partial_rollout", True)
    if stale > 0:
        migration.set("rollout.max_off_policy_steps", math.ceil(stale))
        at_new_weights = "continue" if partial else "restart"
        migration.set("rollout.queue", {"at_new_weights": at_new_weights})
        migration.note(
            f"{prefix}.staleness_threshold", stale, "a share of the completions of a step is older "
            "there; here rollout.max_off_policy_steps bounds the age of each token",
        )  # fmt: skip
    if of("use_rollout_log_probs", True) and not of("compute_prox_log_prob", False):
        flat.setdefault(f"{CORRECTION}.rollout_is", "token")
        migration.note(
            f"{prefix}.use_rollout_log_probs", True, "old log-probs are always the trainer's own, "
            "not the engine's; importance weights of tokens stand for their ratio",
        )  # fmt: skip


def _data(flat: Tree, migration: Migration) -> None:
    migration.set("data.format", "verl")
    for key in (f"{MODEL}.path", "data.train_files", "data.val_files"):
        if flat[key] == DEFAULTS[key]:
            migration.note(key, flat[key], "not given; this is verl's own default")
    set_training_files(migration, "data.train_files", flat.pop("data.train_files"))
    files = flat.pop("data.val_files")
    names = [files] if isinstance(files, str) else list(files)
    every, before = flat.pop("trainer.test_freq"), flat.pop("trainer.val_before_train")
    set_validation(migration, names[0], every, before)
    if len(names) > 1:
        migration.note("data.val_files", names[1:], "one file is validated on; put them into it")
    for key in ("prompt_key", "image_key", "video_key", "reward_fn_key"):
        if (name := flat.pop(f"data.{key}")) != (usual := DEFAULTS[f"data.{key}"]):
            migration.notes.append(
                f"data.{key}: rename the column '{name}' of the data to '{usual}'"
            )
    if not flat.pop("data.shuffle"):
        migration.note("data.shuffle", False, "the data are always shuffled, by seed")
    if (cut := flat.pop("data.truncation")) != "error":
        migration.note("data.truncation", cut, "prompts that are too long are left out, and listed")


def _batches(flat: Tree, migration: Migration) -> None:
    """Set mini-batches, which are counted in prompts, there as here."""
    sampled, updated = flat.pop("data.train_batch_size"), flat.pop(f"{ACTOR}.ppo_mini_batch_size")
    migration.set("data.train_batch_size", sampled)
    if updated < sampled:
        migration.set("algorithm.ppo_mini_batch_size", updated)
    if flat.pop(f"{ACTOR}.shuffle"):
        migration.note(f"{ACTOR}.shuffle", True, "mini-batches keep the order of the rollout")


def _lora(flat: Tree, migration: Migration) -> None:
    """Set LoRA from two spellings with their own defaults; Megatron's, ``lora.rank``, is first."""
    rank, alpha = flat.pop(f"{MODEL}.lora_rank"), flat.pop(f"{MODEL}.lora_alpha")
    names = ("rank", "alpha", "dropout")
    first, scale, dropout = (flat.pop(f"{MODEL}.lora.{name}", None) for name in names)
    if first:
        rank, alpha = first, 32 if scale is None else scale
    modules, excluded = (
        flat.pop(f"{MODEL}.target_modules"),
        flat.pop(f"{MODEL}.exclude_modules", None),
    )
    adapters = flat.pop(f"{MODEL}.lora_adapter_path", None)
    if not rank and adapters is None:
        return
    if "linear_qkv" in str(modules):  # Megatron's names of all layers
        modules = "all-linear"
    set_lora(migration, rank or 16, alpha, modules)
    if first and dropout:
        migration.set("model.lora.dropout", dropout)
    if adapters is not None:
        migration.tree["model"]["lora"] = {"path": adapters}
        migration.note(
            f"{MODEL}.lora_adapter_path", adapters, "rank, alpha and layers are those of the "
            "adapters",
        )  # fmt: skip
    if excluded is not None and "visual" in str(excluded):
        flat[f"{ACTOR}.freeze_vision_tower"] = True  # and has no adapters then
    elif excluded:
        migration.note(
            f"{MODEL}.exclude_modules", excluded, "name the others instead, in "
            "model.lora.target_modules",
        )  # fmt: skip


def _optimizer(flat: Tree, migration: Migration) -> None:
    """Set the optimizer: their schedule counts rollouts, ours optimizer steps."""
    steps, ratio = (
        flat.pop(f"{ACTOR}.optim.lr_warmup_steps"),
        flat.pop(f"{ACTOR}.optim.lr_warmup_steps_ratio"),
    )
    set_schedule(migration, flat[f"{ACTOR}.ppo_epochs"], steps if steps >= 0 else None, ratio)
    if (parts := flat.pop(FETCHES, 1)) > 1 and steps > 0:
        migration.tree["optimizer"]["scheduler"]["warmup_steps"] //= parts
    lowest = flat.pop(f"{ACTOR}.optim.min_lr_ratio") * flat[f"{ACTOR}.optim.lr"]
    lowest = flat.pop(f"{ACTOR}.optim.min_lr", None) or lowest
    if lowest:
        kind = flat[f"{ACTOR}.optim.lr_scheduler_type"]
        set_least_rate(migration, kind, f"{ACTOR}.optim.min_lr", lowest)
    if (cycles := flat.pop(f"{ACTOR}.optim.num_cycles")) != 0.5:
        migration.note(f"{ACTOR}.optim.num_cycles", cycles, "a cosine falls once, by half a cycle")


def _engine(flat: Tree, migration: Migration) -> None:
    """Set limits of the text, and other arguments of vLLM."""
    key = f"{ROLLOUT}.max_model_len"
    prompt, response = flat.pop("data.max_prompt_length"), flat.pop("data.max_response_length")
    set_lengths(migration, prompt, response, key, flat.pop(key, None))
    if (top_k := flat.pop(f"{ROLLOUT}.top_k")) > 0:
        migration.set("rollout.top_k", top_k)
    name, dtype = flat.pop(f"{ROLLOUT}.name", None), flat.pop(f"{ROLLOUT}.dtype", None)
    share = flat.pop(f"{ROLLOUT}.gpu_memory_utilization")
    size = flat.pop(f"{ROLLOUT}.tensor_model_parallel_size")
    if name not in (None, "vllm", "hf"):
        migration.note(f"{ROLLOUT}.name", name, "has no counterpart; the engine is vllm")
    if name == "hf":
        migration.set("rollout.engine.type", "hf")
        return
    vllm = {"type": "vllm", "gpu_memory_utilization": share, "tensor_parallel_size": size}
    migration.set("rollout.engine", vllm)
    if dtype in DTYPES:
        migration.set("rollout.engine.dtype", DTYPES[dtype])
    elif dtype is not None:
        migration.note(f"{ROLLOUT}.dtype", dtype, "has no counterpart; it is that of the model")


def _template(flat: Tree, migration: Migration) -> None:
    prefix = "data.apply_chat_template_kwargs."
    if given := {key: flat.pop(key) for key in list(flat) if key.startswith(prefix)}:
        variables = {key.removeprefix(prefix): value for key, value in given.items()}
        migration.set("data.chat_template_kwargs", variables)
    if (template := flat.pop(f"{MODEL}.custom_chat_template", None)) is not None:
        migration.note(
            f"{MODEL}.custom_chat_template", template, "put the text into a file and name it in "
            "data.chat_template",
        )  # fmt: skip


def _validation(flat: Tree, migration: Migration) -> None:
    keys = ("n", "temperature", "top_p", "top_k", "do_sample")
    n, temperature, top_p, top_k, samples = (flat.pop(f"{ROLLOUT}.val_kwargs.{k}") for k in keys)
    set_sampled(migration, n if samples else 0, temperature, top_p, top_k)
    if n > 1 and not (samples and temperature):
        migration.note(f"{ROLLOUT}.val_kwargs.n", n, "greedy completions are all the same")


def _reward(flat: Tree, migration: Migration) -> None:
    path = flat.pop("reward.custom_reward_function.path", None)
    name = flat.pop("reward.custom_reward_function.name")
    options = flat.pop("reward.custom_reward_function.reward_kwargs", None)
    functions: Tree = {}
    if path:
        functions["verl"] = {"type": f"{path}:{name}", **(options or {})}
    else:
        migration.notes.append(
            "reward.custom_reward_function.path: null: verl scores each row by the rule of its "
            "data_source; choose reward functions in rewards (docs/rewards.md)"
        )
    for key in ("gdpo_reward_keys", "gdpo_reward_weights"):
        if (value := flat.pop(f"algorithm.{key}", None)) is not None:
            migration.note(
                f"algorithm.{key}", value, "give each a function of its own in rewards, "
                "with its weight",
            )  # fmt: skip
    functions |= _overlong(flat, migration)
    distilled = migration.tree.get("rewards")
    manager = flat.pop("reward.reward_manager.name")
    if manager not in ("naive", "dapo", "batch"):
        migration.note("reward.reward_manager.name", manager, "functions in rewards")
    if flat.pop("reward.reward_model.enable", False):
        migration.note(
            "reward.reward_model.model_path", flat.pop("reward.reward_model.model_path", None),
            "a reward function that asks that model, by URL or from a file, in rewards",
        )  # fmt: skip
    if distilled:
        return
    if functions and path:
        migration.set("rewards", functions)
    elif functions:
        migration.set("rewards", {"math": {}, **functions})


def _overlong(flat: Tree, migration: Migration) -> Tree:
    """The penalty of the dapo reward manager as the reward function ``overlong``."""
    prefix = "reward.reward_kwargs"
    most = flat.pop(f"{prefix}.max_resp_len", migration.tree["rollout"]["max_response_length"])
    names = ("enable", "len", "penalty_factor", "log")
    on, buffer, factor, log = (flat.pop(f"{prefix}.overlong_buffer_cfg.{n}", None) for n in names)
    if not on:
        return {}
    if log is False:
        migration.note(f"{prefix}.overlong_buffer_cfg.log", log, "its values are always logged")
    options = {"max_length": most, "buffer": buffer}
    return {"overlong": {"weight": 1.0 if factor is None else factor, **options}}


def _trainer(flat: Tree, migration: Migration) -> None:
    run, project = str(flat.pop("trainer.experiment_name")), flat.pop("trainer.project_name")
    trackers = flat.pop("trainer.logger")
    set_tracking(migration, "trainer.logger", trackers, project_name=project, run_name=run)
    folder = f"checkpoints/{project}/{run}"
    tool, profiled = flat.pop("global_profiler.tool", None), flat.pop("global_profiler.steps", None)
    if tool is not None and profiled:
        migration.set(
            "trainer.profile_steps", [profiled] if isinstance(profiled, int) else profiled
        )
    if tool is not None:
        why = "the traces of torch.profiler, of one process" if profiled else "there are no steps"
        migration.note("global_profiler.tool", tool, why)
    folder = flat.pop("trainer.default_local_dir", folder)
    migration.set("trainer.output_dir", folder)
    every, limit = flat.pop("trainer.save_freq"), flat.pop("trainer.max_actor_ckpt_to_keep", None)
    if limit is not None:
        set_checkpoints(migration, every, "trainer.max_actor_ckpt_to_keep", limit)
    elif every > 0:
        migration.set("trainer.checkpoints.save_steps", every)
    epochs, steps = flat.pop("trainer.total_epochs"), flat.pop("trainer.total_training_steps", None)
    if steps is None:
        migration.set("trainer.total_epochs", epochs)
        migration.note(
            "trainer.total_epochs", epochs, "an epoch ends with the last rows, verl drops them"
        )
    else:
        migration.set("trainer.max_steps", steps)
    name = str(flat.pop("--config-name", "ppo_trainer")).removesuffix(".yaml")
    if name.removeprefix("fully_async_") not in ("ppo_trainer", "ppo_megatron_trainer"):
        migration.note(
            "--config-name", name, "its keys are not read; give that YAML itself, and the script's "
            "overrides behind it",
        )  # fmt: skip


VERL = Source(
    project="verl",
    title="verl",
    program=(
        "verl.trainer.main_ppo", "*verl/trainer/main_ppo.py", "verl.trainer.main_ppo_sync",
        "main_ppo_split.py", "*.main_dapo", "recipe.*.main_ppo", "recipe.entropy.main_entropy",
        "recipe.fully_async_policy.fully_async_main",
    ),
    arguments="hydra",
    is_theirs=_is_theirs,
    carry=(
        _fully_async, _data, carry_algorithm, carry_distillation, carry_kl, carry_correction,
        carry_filter, _batches, _lora, _optimizer, _engine, _template, _validation, _reward,
        _trainer,
    ),
    defaults=DEFAULTS,
    older=OLDER,
    renamed=RENAMED,
    translated=TRANSLATED,
    composed=COMPOSED,
    unneeded=UNNEEDED,
    nullable=frozenset({f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"}),
    whole=frozenset({"reward.custom_reward_function.reward_kwargs"}),
)  # fmt: skip
