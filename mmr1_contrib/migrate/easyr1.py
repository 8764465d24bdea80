"""EasyR1's YAML as ours: the keys that are carried over together with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1_contrib.migrate.easyr1_keys import (
    COMPOSED,
    DEFAULTS,
    ESTIMATORS,
    KL,
    LOSSES,
    OLDER,
    OWN_ALGORITHMS,
    RENAMED,
    TRANSLATED,
    UNNEEDED,
    USUAL_COLUMNS,
)
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.shared import (
    loss_type,
    set_checkpoints,
    set_kl,
    set_least_rate,
    set_lengths,
    set_lora,
    set_resampling,
    set_sampled,
    set_schedule,
    set_target,
    set_tracking,
    set_validation,
)
from mmr1_contrib.migrate.source import Source


def _is_theirs(keys: Mapping[str, Any]) -> bool:
    return any(key.startswith("worker.") for key in keys)


def _format(flat: Tree, migration: Migration) -> None:
    """Set the columns of EasyR1's rows, which may have other names."""
    names = {key: flat.pop(key) for key in USUAL_COLUMNS}
    other = {k.removeprefix("data."): v for k, v in names.items() if v != USUAL_COLUMNS[k]}
    migration.set("data.format", other or "easyr1")


def _algorithm(flat: Tree, migration: Migration) -> None:
    """Set a preset of ours, with another advantage or another loss."""
    estimator, loss = flat.pop("algorithm.adv_estimator"), flat.pop("worker.actor.loss_type")
    kind = LOSSES.get(loss, "ppo")
    if loss not in LOSSES:
        migration.note("worker.actor.loss_type", loss, "no such loss here; it is the clipped")
    if loss == "gspo_token":
        migration.note(
            "worker.actor.loss_type",
            loss,
            "gspo, which has the same gradient: all tokens of a completion have one advantage",
        )
    if estimator in OWN_ALGORITHMS:
        name = OWN_ALGORITHMS[estimator]
        if name != "remax":
            migration.note(
                "algorithm.adv_estimator",
                estimator,
                "advantages of N tokens are divided by the population's deviation, in EasyR1 by "
                "the sample's, which is larger by sqrt(N / (N - 1))",
            )
    elif estimator in ESTIMATORS:
        name = "grpo" if kind == "ppo" else kind
        if ESTIMATORS[estimator] is not None:
            migration.set("algorithm.advantage.type", ESTIMATORS[estimator])
    else:
        raise ValueError(
            f"algorithm.adv_estimator: '{estimator}' has no counterpart; it can be one of "
            f"{', '.join([*ESTIMATORS, *OWN_ALGORITHMS])}"
        )
    migration.set("algorithm.name", name)
    kind = loss_type(migration, "worker.actor.loss_type", name, kind)
    clip = [flat.pop(f"worker.actor.clip_ratio_{bound}") for bound in ("low", "high", "dual")]
    taus = [flat.pop(f"worker.actor.tau_{sign}") for sign in ("positive", "negative")]
    if kind == "sapo":
        migration.set("algorithm.loss.tau_pos", taus[0])
        migration.set("algorithm.loss.tau_neg", taus[1])
    else:
        migration.set("algorithm.loss.clip_ratio_low", clip[0])
        migration.set("algorithm.loss.clip_ratio_high", clip[1])
        if kind != "cispo":
            migration.set("algorithm.loss.clip_ratio_dual", clip[2])
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
    if name == "reinforce_pp":
        migration.set("algorithm.advantage.gamma", gamma)
    if name != "ppo":
        return
    sampled = flat["data.rollout_batch_size"]
    size, policys = (
        min(of, sampled)
        for of in (
            own.pop("worker.critic.global_batch_size"),
            flat["worker.actor.global_batch_size"],
        )
    )
    critic = {
        "path": own.pop("worker.critic.model.model_path", None),
        "lr": own.pop("worker.critic.optim.lr"),
        "cliprange_value": own.pop("worker.critic.cliprange_value"),
        "ppo_epochs": own.pop("worker.critic.ppo_epochs"),
        "warmup_steps": warmup,
    }
    critic = {key: value for key, value in critic.items() if value is not None}
    migration.set("algorithm.advantage", {"gamma": gamma, "lam": lam, "critic": critic})
    if size != policys:
        migration.note(
            "worker.critic.global_batch_size", size, f"the critic has the policy's mini-batches, "
            f"of {policys} prompts",
        )  # fmt: skip
    if own.pop("worker.critic.loss_avg_mode") != "token":
        migration.note("worker.critic.loss_avg_mode", "seq", "the critic's loss is per token here")
    for key, value in own.items():
        migration.note(key, value, "the critic shares the policy's settings, or needs none")


def _kl(flat: Tree, migration: Migration) -> None:
    keys = ("disable_kl", "use_kl_loss", "kl_penalty", "kl_coef", "kl_type", "kl_horizon")
    off, in_loss, penalty, coef, kind, horizon = (flat.pop(f"algorithm.{key}") for key in keys)
    target = flat.pop("algorithm.kl_target")
    if off or coef == 0:
        return
    if penalty not in KL:
        migration.note("algorithm.kl_penalty", penalty, "not computed there as a KL; it is k1")
    set_kl(migration, coef, in_loss, KL.get(penalty, "k1"))
    if kind == "adaptive" and not in_loss:
        completions = flat["data.rollout_batch_size"] * flat["worker.rollout.n"]
        set_target(migration, target, "algorithm.kl_horizon", horizon, completions)


def _filter(flat: Tree, migration: Migration) -> None:
    key, low, high = (flat.pop(f"algorithm.filter_{name}") for name in ("key", "low", "high"))
    tries = flat.pop("trainer.max_try_make_batch")
    if not flat.pop("algorithm.online_filtering"):
        return
    set_resampling(migration, tries, (low, high) if key == "overall" else None)
    if key != "overall":
        migration.note(
            "algorithm.filter_key",
            key,
            "groups stay whose whole rewards differ; to keep those whose mean of that score is "
            f"from {low} to {high}, give it a reward function of its own in rewards, "
            "with weight 0, and name it in algorithm.filter_groups.range.metric",
        )
    migration.note(
        "trainer.max_try_make_batch", tries, "after so many draws a step uses the groups it has"
    )


def _batches(flat: Tree, migration: Migration) -> None:
    """Set mini-batches, which are counted in prompts, there as here."""
    sampled, updated = flat["data.rollout_batch_size"], flat.pop("worker.actor.global_batch_size")
    migration.set("data.train_batch_size", flat.pop("data.rollout_batch_size"))
    if updated < sampled:
        migration.set("algorithm.ppo_mini_batch_size", updated)


def _lora(flat: Tree, migration: Migration) -> None:
    rank = flat.pop("worker.actor.model.lora.rank")
    alpha = flat.pop("worker.actor.model.lora.alpha")
    modules = flat.pop("worker.actor.model.lora.target_modules")
    excluded = flat.pop("worker.actor.model.lora.exclude_modules", None)
    if not rank:
        return
    set_lora(migration, rank, alpha, modules)
    if excluded is not None and "visual" in str(excluded):
        flat["worker.actor.model.freeze_vision_tower"] = True  # and has no adapters then
    elif excluded is not None:
        migration.note(
            "worker.actor.model.lora.exclude_modules", excluded, "name the others instead, in "
            "model.lora.target_modules",
        )  # fmt: skip


def _schedule(flat: Tree, migration: Migration) -> None:
    """Set the schedule: theirs counts rollouts, ours optimizer steps."""
    ratio = flat.pop("worker.actor.optim.lr_warmup_ratio")
    steps = flat.pop("worker.actor.optim.lr_warmup_steps", None)
    set_schedule(migration, flat["worker.actor.ppo_epochs"], steps, ratio)
    key, kind = "worker.actor.optim.min_lr_ratio", flat["worker.actor.optim.lr_scheduler_type"]
    if (lowest := flat.pop(key, None)) is not None:
        set_least_rate(migration, kind, key, lowest * flat["worker.actor.optim.lr"])


def _lengths(flat: Tree, migration: Migration) -> None:
    key = "worker.rollout.max_model_len"
    prompt, response = flat.pop("data.max_prompt_length"), flat.pop("data.max_response_length")
    set_lengths(migration, prompt, response, key, flat.pop(key, None))
    if (top_k := flat.pop("worker.rollout.top_k")) > 0:
        migration.set("rollout.top_k", top_k)


def _validation(flat: Tree, migration: Migration) -> None:
    prefix = "worker.rollout.val_override_config"
    flat.pop(prefix, None)
    trained = {key: flat[f"worker.rollout.{key}"] for key in ("temperature", "top_p")}
    trained["top_k"] = migration.tree["rollout"].get("top_k", 0)
    temperature, top_p, top_k = (flat.pop(f"{prefix}.{k}", trained[k]) for k in trained)
    n = flat.pop(f"{prefix}.n")
    set_sampled(migration, n, temperature, top_p, top_k)
    if not temperature and n > 1:
        migration.note(f"{prefix}.n", n, "greedy completions are all the same")
    every, before = flat.pop("trainer.val_freq"), flat.pop("trainer.val_before_train")
    if (data := flat.pop("data.val_files", None)) is not None:
        set_validation(migration, data, every, before)


def _reward(flat: Tree, migration: Migration) -> None:
    spec = flat.pop("worker.reward.reward_function", None)
    options = flat.pop("worker.reward.reward_function_kwargs", None)
    if spec:
        use = spec if ":" in spec else f"{spec}:main"
        migration.set("rewards", {"easyr1": {"type": use, **(options or {})}})


def _template(flat: Tree, migration: Migration) -> None:
    if path := flat.pop("data.format_prompt", None):
        migration.set("data.prompt_template", path)
    both = {bound: flat.pop(f"data.{bound}_pixels", None) for bound in ("min", "max")}
    for kind in ("image", "video"):
        for bound, shared in both.items():
            own = flat.pop(f"data.{kind}_{bound}_pixels", None)
            if value := own or shared:
                migration.set(f"data.{kind}.{bound}_pixels", value)
                if kind == "image":
                    migration.set("data.image.resize", "easyr1")
    if not flat.pop("data.shuffle"):
        migration.note("data.shuffle", False, "the data are always shuffled, by seed")
    if flat.pop("worker.rollout.enable_mix_policy", False):
        migration.note(
            "worker.rollout.enable_mix_policy", True, "all completions of a group are sampled; "
            "none is taken from the data",
        )  # fmt: skip


def _logging(flat: Tree, migration: Migration) -> None:
    name, project = flat.pop("trainer.experiment_name"), flat.pop("trainer.project_name")
    trackers = flat.pop("trainer.logger")
    set_tracking(migration, "trainer.logger", trackers, project_name=project, run_name=name)
    migration.set("trainer.output_dir", flat.pop("trainer.save_checkpoint_path", f"runs/{name}"))
    every, limit = flat.pop("trainer.save_freq"), flat.pop("trainer.save_limit")
    set_checkpoints(migration, every, "trainer.save_limit", limit)
    migration.set("trainer.save_only_model", flat.pop("trainer.save_model_only"))


def _steps(flat: Tree, migration: Migration) -> None:
    """Set the steps: their ``max_steps`` counts rollouts, as ours does, and precedes epochs."""
    epochs, steps = flat.pop("trainer.total_epochs"), flat.pop("trainer.max_steps", None)
    if steps is None:
        migration.set("trainer.total_epochs", epochs)
        migration.note(
            "trainer.total_epochs", epochs, "an epoch ends with the last rows, EasyR1 drops them"
        )
    else:
        migration.set("trainer.max_steps", steps)


EASYR1 = Source(
    project="easyr1",
    title="EasyR1",
    program=("verl.trainer.main",),
    arguments="hydra",
    config_argument="config",
    is_theirs=_is_theirs,
    carry=(
        _format, _algorithm, _kl, _filter, _batches, _lora, _schedule, _lengths, _validation,
        _reward, _template, _logging, _steps,
    ),
    defaults=DEFAULTS,
    older=OLDER,
    renamed=RENAMED,
    translated=TRANSLATED,
    composed=COMPOSED,
    unneeded=UNNEEDED,
    whole=frozenset({"worker.reward.reward_function_kwargs"}),
)  # fmt: skip
