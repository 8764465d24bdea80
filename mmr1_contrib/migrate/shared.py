"""Steps of the migration that several projects share."""

from __future__ import annotations

from typing import Any

from mmr1_contrib.migrate.migration import Migration

TRACKERS = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
ALWAYS = ("console", "file")
"""Loggers whose work is always done: progress, and metrics.jsonl."""

NO_LIMIT = 1_000_000
"""In place of "as often as it takes"."""


def set_tracking(migration: Migration, key: str, given: Any, **names: Any) -> None:
    """Set the trackers, and the names that they show; without a tracker there are none."""
    trackers = [given] if isinstance(given, str) else list(given)
    if known := [name for name in trackers if name in TRACKERS]:
        named = {name: str(value) for name, value in names.items() if value is not None}
        migration.set("trainer.tracking", {"report_to": known, **named})
    for name in trackers:
        if name == "file":
            migration.note(key, name, "metrics.jsonl is written in any case")
        elif name not in (*TRACKERS, *ALWAYS):
            migration.note(key, name, "no such tracker here")


def set_checkpoints(migration: Migration, every: int, key: str, limit: int | None) -> None:
    """Set checkpoints after so many steps, none before the last step for 0, and how many stay."""
    if every <= 0:
        return
    migration.set("trainer.checkpoints.save_steps", every)
    if limit is not None and limit >= 2:
        migration.set("trainer.checkpoints.save_total_limit", limit)
    else:
        migration.note(key, limit, "at least 2 checkpoints are kept, 2 by default")


def set_validation(migration: Migration, data: str, every: int, before: bool) -> None:
    """Set a validation after so many steps; for 0 or less after the last one only."""
    migration.set("trainer.validation.data", data)
    if every > 0:
        migration.set("trainer.validation.steps", every)
    migration.set("trainer.validation.before_train", before)


def set_training_files(migration: Migration, key: str, given: Any) -> None:
    """Set one training file, or several that are read as one."""
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
    """Set adapters on these layers; names as a list or with commas."""
    if isinstance(modules, str) and modules != "all-linear":
        modules = [name.strip() for name in modules.split(",") if name.strip()]
    migration.set("model.lora", {"rank": rank, "alpha": alpha, "target_modules": modules})


def set_schedule(
    migration: Migration, epochs: int, warmup_steps: int | None, warmup_ratio: float | None
) -> None:
    """Set the warm-up, in rollouts, as optimizer steps; ``epochs`` passes over a rollout."""
    sampled = migration.tree["data"]["train_batch_size"]
    size = migration.tree.get("algorithm", {}).get("ppo_mini_batch_size", sampled)
    if warmup_steps is None and warmup_ratio:
        steps: float = warmup_ratio
    else:
        steps = (warmup_steps or 0) * epochs * (sampled // size)
    migration.set("optimizer.scheduler.warmup_steps", steps)


def set_least_rate(migration: Migration, schedule: str, key: str, rate: float) -> None:
    """Set the learning rate at the end of a falling schedule."""
    if schedule != "constant":
        migration.set("optimizer.scheduler.min_lr", rate)
    elif rate:
        migration.note(key, rate, "a constant rate does not fall to it")


def set_lengths(
    migration: Migration, prompt: int, response: int, key: str = "", window: int | None = None
) -> None:
    """Set the longest prompt and completion; a ``window`` for both may shorten the prompt.

    ``key`` is what they call the window.
    """
    if window is not None and window != prompt + response:
        migration.note(
            key, window, "vLLM's limit is the sum of rollout.max_prompt_length and "
            "rollout.max_response_length; a smaller one is taken off the former",
        )  # fmt: skip
        prompt = min(prompt, window - response)
    migration.set("rollout.max_prompt_length", prompt)
    migration.set("rollout.max_response_length", response)


def loss_type(migration: Migration, key: str, name: str, kind: str) -> str:
    """The type of loss under a preset of ours; ``key`` is what they call it."""
    if kind == "gspo" and name in ("ppo", "reinforce_pp"):
        migration.note(
            key, kind, f"{name} has advantages of tokens, which do not go with one ratio per "
            "completion; the loss is PPO's clipped one",
        )  # fmt: skip
        return "ppo"
    if kind not in ("ppo", name):
        migration.set("algorithm.loss.type", kind)
    return kind


def set_kl(migration: Migration, coef: float, in_loss: bool, estimator: str) -> None:
    """Set a KL to the policy at the start."""
    kind = "loss" if in_loss else "reward"
    migration.set("algorithm.kl", {"type": kind, "coef": coef, "estimator": estimator})


def set_target(
    migration: Migration, target: float, key: str, horizon: float, completions: int
) -> None:
    """Set a coefficient that adapts; ``key`` is their name of the ``horizon``."""
    migration.set("algorithm.kl.target", target)
    migration.note(
        key, horizon, "a step changes the coefficient by 0.1 of the relative error, there by "
        f"completions / horizon = {completions / horizon:.3g} of it; the error is of the mean of "
        "k3 per token, there of the penalty",
    )  # fmt: skip


def set_resampling(
    migration: Migration,
    draws: int,
    between: tuple[float, float] | None = None,
    gen_batch_size: int | None = None,
) -> None:
    """Replace groups without a signal, at most ``draws`` times; 0 for no limit."""
    groups: dict[str, Any] = {"type": "resample"}
    if between is not None:
        groups["range"] = {"metric": "overall", "between": list(between)}
    if gen_batch_size is not None:
        groups["gen_batch_size"] = gen_batch_size
    groups["max_num_gen_batches"] = draws if draws > 0 else NO_LIMIT
    migration.set("algorithm.filter_groups", groups)


def set_correction(migration: Migration, level: str | None, threshold: float | None = None) -> None:
    """Set weights against the engine's probabilities; none for None."""
    key = "algorithm.rollout_correction.importance_sampling"
    if level is None:
        migration.set(key, None)
        return
    bound = {} if threshold is None else {"threshold": threshold}
    migration.set(key, {"level": level, **bound})


def set_sampled(
    migration: Migration, n: int, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> None:
    """Set sampled completions of a validation; none for 0 of them, or at temperature 0."""
    if not (n and temperature):
        migration.set("eval.sampled", None)
        return
    nucleus = {} if top_p == 1 else {"top_p": top_p}
    most_probable = {"top_k": top_k} if top_k > 0 else {}
    sampled = {"n": n, "temperature": temperature, **nucleus, **most_probable}
    migration.set("eval.sampled", sampled)
