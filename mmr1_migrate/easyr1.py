"""EasyR1's YAML as ours: the keys that are carried over together with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1_migrate.easyr1_keys import (
    COMPOSED,
    DEFAULTS,
    ESTIMATORS,
    IN_FORCE,
    KL,
    LOSS_SETTINGS,
    LOSSES,
    OLDER,
    OWN_ALGORITHMS,
    RENAMED,
    TRANSLATED,
    UNNEEDED,
    USUAL_COLUMNS,
)
from mmr1_migrate.migration import Migration, Tree
from mmr1_migrate.shared import (
    NO_LIMIT,
    set_checkpoints,
    set_lora,
    set_schedule,
    set_trackers,
)
from mmr1_migrate.source import Source


def _is_theirs(keys: Mapping[str, Any]) -> bool:
    return any(key.startswith("worker.") for key in keys)


def _format(flat: Tree, migration: Migration) -> None:
    migration.set("data.format", "easyr1")


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
    clip = [flat.pop(f"worker.actor.clip_ratio_{bound}") for bound in ("low", "high", "dual")]
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
    """Their schedule counts rollouts, ours optimizer steps."""
    ratio = flat.pop("worker.actor.optim.lr_warmup_ratio")
    steps = flat.pop("worker.actor.optim.lr_warmup_steps", None)
    set_schedule(migration, flat["worker.actor.ppo_epochs"], steps, ratio)
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
    temperature = flat.pop(f"{prefix}.temperature", flat["worker.rollout.temperature"])
    n, top_p = flat.pop(f"{prefix}.n"), flat.pop(f"{prefix}.top_p", flat["worker.rollout.top_p"])
    migration.set("eval.n", n if temperature else 0)
    if temperature:
        migration.set("eval.temperature", temperature)
    elif n > 1:
        migration.note(f"{prefix}.n", n, "greedy completions are all the same")
    if top_p != flat["worker.rollout.top_p"]:
        migration.note(f"{prefix}.top_p", top_p, "sampled as in training, by rollout.sampling")
    every, before = flat.pop("trainer.val_freq"), flat.pop("trainer.val_before_train")
    if "data.val_files" in flat:
        migration.set("trainer.val_freq", max(0, every))
        migration.set("trainer.val_before_train", before)


def _reward(flat: Tree, migration: Migration) -> None:
    spec = flat.pop("worker.reward.reward_function", None)
    options = flat.pop("worker.reward.reward_function_kwargs", None)
    if spec:
        use = spec if ":" in spec else f"{spec}:main"
        function = {"use": use, **({"options": options} if options else {})}
        migration.set("rewards.functions", {"easyr1": function})


def _columns(flat: Tree, migration: Migration) -> None:
    for key, usual in USUAL_COLUMNS.items():
        if (name := flat.pop(key)) != usual:
            migration.set(key, name)


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
    set_trackers(migration, "trainer.logger", flat.pop("trainer.logger"))
    name = flat.pop("trainer.experiment_name")
    migration.set("trainer.run_name", name)
    migration.set("trainer.output_dir", flat.pop("trainer.save_checkpoint_path", f"runs/{name}"))
    migration.set("trainer.save_steps", max(0, flat.pop("trainer.save_freq")))
    set_checkpoints(migration, "trainer.save_limit", flat.pop("trainer.save_limit"))
    migration.set("trainer.save_only_model", flat.pop("trainer.save_model_only"))


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


EASYR1 = Source(
    project="easyr1",
    title="EasyR1",
    program=("verl.trainer.main",),
    arguments="hydra",
    config_argument="config",
    is_theirs=_is_theirs,
    carry=(
        _format, _algorithm, _kl, _filter, _batches, _lora, _schedule, _lengths, _validation,
        _reward, _columns, _template, _logging, _steps,
    ),
    defaults=DEFAULTS,
    older=OLDER,
    renamed=RENAMED,
    translated=TRANSLATED,
    composed=COMPOSED,
    unneeded=UNNEEDED,
    loss_settings=LOSS_SETTINGS,
    in_force=IN_FORCE,
    whole=frozenset({"worker.reward.reward_function_kwargs"}),
)  # fmt: skip
