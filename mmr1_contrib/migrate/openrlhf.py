"""OpenRLHF's ``train_ppo_ray`` as ours: the keys that are carried over together with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.openrlhf_keys import (
    COMPOSED,
    DEFAULTS,
    OLDER,
    OLDER_DEFAULTS,
    RENAMED,
    TRANSLATED,
    UNNEEDED,
)
from mmr1_contrib.migrate.shared import (
    set_checkpoints,
    set_correction,
    set_kl,
    set_least_rate,
    set_lengths,
    set_lora,
    set_resampling,
    set_sampled,
    set_target,
    set_tracking,
    set_training_files,
    set_validation,
)
from mmr1_contrib.migrate.source import Carry, Source

# Name of ours, and what its advantage has besides.
ESTIMATORS: dict[str, tuple[str, Tree]] = {
    "gae": ("ppo", {}),
    "reinforce": ("reinforce_pp", {}),
    "reinforce_baseline": ("reinforce_pp_baseline", {}),
    "rloo": ("grpo", {"type": "rloo"}),
    "group_norm": ("grpo", {}),
    "dr_grpo": ("grpo", {"scale_rewards": "none"}),
}


def _data(flat: Tree, migration: Migration) -> None:
    column, label = flat.pop("data.input_key"), flat.pop("data.label_key", None)
    images = flat.pop("data.image_key")
    usual = {"data.input_key": (column, "prompt"), "data.label_key": (label, "label")}
    if column == "message":  # LMM-R1's
        usual = {"data.label_key": (label, "answer")}
    migration.set("data.format", "lmm_r1" if column == "message" else "openrlhf")
    for key, (name, ours) in {**usual, "data.image_key": (images, "images")}.items():
        if name not in (ours, None):
            migration.notes.append(f"{key}: rename the column '{name}' of the data to '{ours}'")
    _datasets(flat, migration)
    if (template := flat.pop("data.input_template", None)) is not None:
        migration.note(
            "data.input_template", template, "put it into a .jinja file, with {{ question }} for "
            "{}, and name it in data.prompt_template",
        )  # fmt: skip


def _datasets(flat: Tree, migration: Migration) -> None:
    """Set the files or datasets that are listed with commas."""
    split, shares = flat.pop("data.prompt_split"), flat.pop("data.prompt_probs", None)
    if (given := flat.pop("data.prompt_dataset", None)) is None:
        return
    files = [_split(name.strip(), split) for name in str(given).split(",")]
    weights = [] if shares is None or "$" in str(shares) else str(shares).split(",")
    if len(weights) == len(files) > 1:
        migration.set("data.train", dict(zip(files, map(float, weights), strict=True)))
        return
    if shares is not None:
        migration.note("data.prompt_probs", shares, "set the weights in data.train")
    set_training_files(migration, "data.prompt_dataset", files)


def _split(name: str, split: str) -> str:
    """A file unchanged; a dataset of the Hub with its split."""
    return name if name.startswith((".", "/", "$")) or "." in name[-8:] else f"{name}@{split}"


def _algorithm(is_old: bool) -> Carry:
    def carry(flat: Tree, migration: Migration) -> None:
        estimator = flat.pop("algo.advantage.estimator")
        if estimator not in ESTIMATORS:
            raise ValueError(
                f"algo.advantage.estimator={estimator}: it can be one of {', '.join(ESTIMATORS)}"
            )
        name, advantage = ESTIMATORS[estimator]
        migration.set("algorithm.name", name)
        for key, value in advantage.items():
            migration.set(f"algorithm.advantage.{key}", value)
        _loss(flat, migration, name)
        _normalisation(flat, migration, estimator, is_old)
        _kl(flat, migration, estimator)
        _rewards_clip(flat, migration, estimator)
        _critic(flat, migration, name)
        _correction(flat, migration)
        if is_old:
            migration.notes.append(
                "train_batch_size: the loss is the mean over the tokens of a mini-batch, in that "
                "version over those of each micro-batch"
            )

    return carry


def _loss(flat: Tree, migration: Migration, name: str) -> None:
    low, high = flat.pop("actor.eps_clip"), None
    if (both := flat.pop("actor.eps_clip_low_high", None)) is not None:
        low, high = both
    kind = flat.pop("actor.policy_loss_type")
    of_sequences = kind == "gspo" and name == "grpo"
    loss = {"type": "gspo"} if of_sequences else {"agg_mode": "token-mean"}
    clip = {"clip_ratio_low": low, "clip_ratio_high": low if high is None else high}
    migration.set("algorithm.loss", {**loss, **clip})
    if (dual := flat.pop("actor.dual_clip", None)) is not None:
        migration.set("algorithm.loss.clip_ratio_dual", dual)
    bonus = flat.pop("actor.entropy_coef", None)
    if bonus is not None:
        migration.set("algorithm.entropy", {"coef": bonus} if bonus else None)
    if of_sequences:
        if flat["algo.kl.use_loss"] or bonus:
            migration.note(
                "actor.policy_loss_type", kind, "the KL and the entropy are means over "
                "completions too, in OpenRLHF over tokens",
            )  # fmt: skip
        if flat["algo.advantage.is_correction_enable"]:
            migration.note(
                "algo.advantage.is_correction_enable", True, "the loss is weighted; OpenRLHF's "
                "gspo has the engine's log-probs in its ratio instead",
            )  # fmt: skip
        return
    if kind != "ppo":
        migration.note("actor.policy_loss_type", kind, f"{name} has PPO's clipped loss here")


def _normalisation(flat: Tree, migration: Migration, estimator: str, is_old: bool) -> None:
    """Set the normalisation over the batch, after the group's baseline."""
    over_batch = estimator in ("gae", "reinforce", "reinforce_baseline")
    if flat.pop("algo.advantage.no_std_norm") and over_batch:
        migration.note(
            "algo.advantage.no_std_norm", True, "advantages of the batch are divided by their "
            "deviation",
        )  # fmt: skip
    if is_old and estimator == "rloo":
        migration.note(
            "algo.advantage.estimator", estimator, "that version also normalises over the batch"
        )


def _kl(flat: Tree, migration: Migration, estimator: str) -> None:
    coefficient, kind = flat.pop("algo.kl.init_coef"), flat.pop("algo.kl.estimator")
    in_loss, target = flat.pop("algo.kl.use_loss"), flat.pop("algo.kl.target", None)
    horizon = flat.pop("algo.kl.horizon")
    if coefficient <= 0:
        return
    set_kl(migration, coefficient, in_loss, kind)
    if not in_loss and estimator == "reinforce_baseline":
        migration.set("algorithm.advantage.kl_to_go", True)
    elif not in_loss and estimator not in ("gae", "reinforce"):
        migration.note(
            "algo.kl.init_coef", coefficient, "the KL of a completion is taken off its reward "
            "before the baseline, in OpenRLHF off each token's return after it",
        )  # fmt: skip
    if target is not None:
        completions = flat["rollout.batch_size"] * flat["rollout.n_samples_per_prompt"]
        set_target(migration, target, "algo.kl.horizon", horizon, completions)


def _rewards_clip(flat: Tree, migration: Migration, estimator: str) -> None:
    bounds = flat.pop("reward.clip_range")
    if estimator in ("gae", "reinforce"):
        migration.set("algorithm.advantage.reward_clip_range", bounds)
    elif list(bounds) != DEFAULTS["reward.clip_range"]:
        migration.note(
            "reward.clip_range", bounds, "OpenRLHF clips the reward less its baseline, mmr1 the "
            "reward; none is clipped",
        )  # fmt: skip


def _critic(flat: Tree, migration: Migration, name: str) -> None:
    gamma, lam = flat.pop("algo.advantage.gamma"), flat.pop("algo.advantage.lambd")
    path, rate = flat.pop("critic.model_name_or_path", None), flat.pop("critic.adam.lr")
    clip, frozen = flat.pop("critic.value_clip"), flat.pop("critic.freezing_steps")
    if name == "ppo":
        critic = {
            "path": path, "lr": rate, "cliprange_value": clip, "warmup_steps": max(0, frozen),
        }  # fmt: skip
        critic = {key: value for key, value in critic.items() if value is not None}
        for key, value in (("gamma", gamma), ("lam", lam), ("critic", critic)):
            migration.set(f"algorithm.advantage.{key}", value)
        return
    if name == "reinforce_pp":
        migration.set("algorithm.advantage.gamma", gamma)
    elif gamma != 1:
        migration.note("algo.advantage.gamma", gamma, "OpenRLHF takes 1 for this estimator")
    for key, value, usual in (
        ("critic.model_name_or_path", path, None),
        ("critic.adam.lr", rate, DEFAULTS["critic.adam.lr"]),
        ("critic.freezing_steps", frozen, -1),
        ("algo.advantage.lambd", lam, 1),
    ):
        if value != usual:
            migration.note(key, value, f"{name} has no critic")


def _correction(flat: Tree, migration: Migration) -> None:
    """Set the correction for the engine's probabilities."""
    names = ("enable", "threshold", "type")
    on, bounds, kind = (flat.pop(f"algo.advantage.is_correction_{name}") for name in names)
    if not on:
        set_correction(migration, None)
        return
    low, high = bounds if isinstance(bounds, list | tuple) else (0.0, bounds)
    set_correction(migration, "token", high)
    if kind != "tis":
        migration.note(
            "algo.advantage.is_correction_type", kind, "weights above the bound are lowered to it; "
            "none is set to 0",
        )  # fmt: skip
    if low > 0:
        migration.note("algo.advantage.is_correction_threshold", low, "weights have no lower bound")


def _filter(flat: Tree, migration: Migration) -> None:
    on, (low, high) = (
        flat.pop("algo.dynamic_filtering_enable"),
        flat.pop("algo.dynamic_filtering_range"),
    )
    drawn = flat.pop("rollout.vllm_generate_batch_size", None)
    if not on:
        if drawn is not None:
            migration.note(
                "rollout.vllm_generate_batch_size", drawn, "prompts are drawn as they are needed"
            )
        return
    set_resampling(migration, 0, (low, high), drawn)


def _batches(flat: Tree, migration: Migration) -> None:
    """Set mini-batches, which count completions, drawn from the whole rollout."""
    n, update = flat["rollout.n_samples_per_prompt"], flat.pop("train.batch_size")
    sampled = flat["rollout.batch_size"]
    prompts = max(1, update // n)
    if update < n or update % n:
        migration.note(
            "train.batch_size", update, f"mini-batches have whole groups of {n}: {prompts} prompts"
        )
    if prompts < sampled:
        while sampled % prompts:
            prompts -= 1
        migration.set("algorithm.ppo_mini_batch_size", prompts)
        migration.note(
            "train.batch_size", update, "mini-batches have whole groups, in OpenRLHF completions "
            "drawn from the whole rollout",
        )  # fmt: skip


def _model(flat: Tree, migration: Migration) -> None:
    frozen = flat.pop("freeze_prefix", None)
    names = [frozen] if isinstance(frozen, str) else list(frozen or ())
    if flat.pop("actor.freeze_visual_encoder") or "visual" in names:
        migration.set("model.freeze_vision_tower", True)
    if others := [name for name in names if name != "visual"]:
        migration.set("optimizer.lr_of_parts", dict.fromkeys(others, 0.0))
    if (halves := flat.pop("bf16", None)) is not None:
        migration.set("model.dtype", "bfloat16" if halves else "float32")
    rank, alpha, modules, dropout = (
        flat.pop(f"ds.lora.{name}") for name in ("rank", "alpha", "target_modules", "dropout")
    )
    if rank:
        set_lora(migration, rank, alpha, modules)
        migration.set("model.lora.dropout", dropout)
        migration.set("model.lora.load_in_4bit", flat.pop("ds.load_in_4bit", False))
    if flat.pop("ref.offload") and "kl" in migration.tree["algorithm"]:
        migration.set("algorithm.kl.reference", {"type": "initial", "offload": True})


def _optimizer(flat: Tree, migration: Migration) -> None:
    if flat["actor.adam.weight_decay"]:
        migration.set("optimizer.decay_norms_and_biases", False)
    if (name := flat.pop("actor.optim")) != "adam":
        migration.note("actor.optim", name, "AdamW is the optimizer")
    if (epsilon := flat.pop("actor.adam.eps")) != 1e-8:
        migration.note("actor.adam.eps", epsilon, "it is 1e-8")
    lowest = flat.pop("actor.min_lr_ratio") * flat["actor.adam.lr"]
    if flat["actor.lr_scheduler"] == "cosine_with_min_lr":
        set_least_rate(migration, "cosine", "actor.min_lr_ratio", lowest)


def _rollout(flat: Tree, migration: Migration) -> None:
    whole, prompt = flat.pop("data.max_len", None), flat.pop("data.prompt_max_len", None)
    longest = flat.pop("rollout.max_new_tokens", None)
    if longest is None:
        longest = whole // 2
        migration.note(
            "rollout.max_new_tokens", None, "OpenRLHF takes what the prompt leaves of "
            f"data.max_len; here half of it, {longest}",
        )  # fmt: skip
    set_lengths(migration, whole - longest if prompt is None else prompt, longest)
    engines = flat.pop("vllm.num_engines", None)
    names = ("gpu_memory_utilization", "tensor_parallel_size")
    vllm = {name: flat.pop(f"vllm.{name}") for name in names}
    migration.set("rollout.engine", {"type": "vllm", **vllm} if engines else {"type": "hf"})
    if engines and engines > 1:
        migration.note("vllm.num_engines", engines, "resources.engines, on Ray")
    if not engines:
        migration.note("vllm.num_engines", engines, "transformers samples; engine hf")
    if flat.pop("train.async_enable"):
        migration.set("rollout.max_off_policy_steps", flat.pop("train.async_queue_size"))
    else:
        flat.pop("train.async_queue_size")


def _rewards(flat: Tree, migration: Migration) -> None:
    functions: Tree = {}
    given = flat.pop("reward.remote_url", None)
    for number, url in enumerate(str(given).split(",") if given else ()):
        name = "openrlhf" if not number else f"openrlhf_{number + 1}"
        is_file = url.endswith(".py")
        own, remote = {"type": f"{url}:reward_func"}, {"type": "remote", "url": url}
        functions[name] = own if is_file else remote
    if (model := flat.pop("reward.model_name_or_path", None)) is not None:
        migration.note(
            "reward.model_name_or_path", model, "a reward function that asks that model, by URL or "
            "from a file, in rewards",
        )  # fmt: skip
    if flat.pop("reward.normalize_enable"):
        migration.note(
            "reward.normalize_enable", True, "read by OpenRLHF for reward models it runs itself; "
            "rewards are as the functions give them",
        )  # fmt: skip
    buffer, factor = (
        flat.pop("reward.overlong_buffer_len", None),
        flat.pop("reward.overlong_penalty_factor"),
    )
    if buffer is not None:
        longest = migration.tree["rollout"]["max_response_length"]
        options = {"max_length": longest, "buffer": int(buffer)}
        functions["overlong"] = {"weight": factor, **options}
    if (share := flat.pop("reward.stop_properly_penalty_coef", None)) is not None:
        migration.note(
            "reward.stop_properly_penalty_coef", share, "rewards of truncated completions are not "
            "scaled; algorithm.mask_truncated_completions leaves them out of the loss",
        )  # fmt: skip
    if functions:
        migration.set("rewards", functions)
    else:
        migration.notes.append(
            "reward.remote_url: not given; choose reward functions in rewards (docs/rewards.md)"
        )


def _trainer(flat: Tree, migration: Migration) -> None:
    migration.set("trainer.output_dir", flat.pop("ckpt.output_dir"))
    migration.set("trainer.total_epochs", flat.pop("train.num_episodes"))
    if (steps := flat.pop("max_global_steps", None)) is not None:
        migration.set("trainer.max_steps", steps)
    every, limit = flat.pop("ckpt.save_steps"), flat.pop("ckpt.max_num")
    set_checkpoints(migration, every, "ckpt.max_num", limit)
    _tracking(flat, migration)
    every, n = flat.pop("eval.steps"), flat.pop("eval.n_samples_per_prompt")
    temperature, split = flat.pop("eval.temperature"), flat.pop("eval.split")
    if (data := flat.pop("eval.dataset", None)) is not None:
        set_validation(migration, _split(data, split), every, False)
        set_sampled(migration, n, temperature, flat["rollout.top_p"])
    elif every > 0:
        migration.note("eval.steps", every, "there is no eval.dataset")


def _tracking(flat: Tree, migration: Migration) -> None:
    by_wandb, board = flat.pop("logger.wandb.key", None), flat.pop("logger.tensorboard_dir", None)
    names = {
        f"{name}_name": flat.pop(f"logger.wandb.{key}", None)
        for name, key in (("project", "project"), ("run", "run_name"))
    }
    trackers = ["wandb"] * bool(by_wandb) + ["tensorboard"] * bool(board)
    set_tracking(migration, "logger.wandb.key", trackers, **names)
    if by_wandb not in (None, True, "True"):
        migration.notes.append("logger.wandb.key: left out; wandb reads WANDB_API_KEY")


def _has_dots(keys: Mapping[str, Any]) -> bool:
    return any(key.startswith(("actor.", "algo.", "rollout.")) for key in keys)


def _has_none(keys: Mapping[str, Any]) -> bool:
    return bool(keys.keys() & {"pretrain", "actor_learning_rate", "init_kl_coef"})


def _source(title: str, is_theirs: Any, defaults: Tree, is_old: bool) -> Source:
    return Source(
        project="openrlhf",
        kind="openrlhf-0.7" if is_old else "openrlhf-0.11",
        title=title,
        program=("openrlhf.cli.train_ppo_ray", "*train_ppo_ray.py", "openrlhf.cli.train_ppo"),
        arguments="options",
        is_theirs=is_theirs,
        carry=(
            _data, _algorithm(is_old), _filter, _batches, _model, _optimizer, _rollout, _rewards,
            _trainer,
        ),
        defaults=defaults,
        older=OLDER if is_old else {},
        renamed=RENAMED,
        translated=TRANSLATED,
        composed=COMPOSED,
        unneeded=UNNEEDED,
            )  # fmt: skip


OPENRLHF = _source("OpenRLHF 0.11", _has_dots, DEFAULTS, is_old=False)
LMM_R1 = _source("OpenRLHF 0.7, LMM-R1", _has_none, OLDER_DEFAULTS, is_old=True)
