"""Keys that decide the loss of verl's ``ppo_trainer``: algorithm, KL, correction, filter."""

from __future__ import annotations

from typing import Any

from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.shared import (
    loss_type,
    set_correction,
    set_kl,
    set_resampling,
    set_target,
)
from mmr1_contrib.migrate.verl_keys import (
    ACTOR,
    AGGREGATIONS,
    COMPOSED,
    CORRECTION,
    DEFAULTS,
    DISTILLATION,
    ESTIMATORS,
    KL,
    LOSSES,
    OWN_ALGORITHMS,
    REJECTIONS,
    REWARDS_OF_ALL,
    ROLLOUT,
)


def carry_algorithm(flat: Tree, migration: Migration) -> None:
    """Set a preset of ours, with another advantage or another loss."""
    estimator, loss = (
        flat.pop("algorithm.adv_estimator"),
        flat.pop(f"{ACTOR}.policy_loss.loss_mode"),
    )
    by_deviation = flat.pop("algorithm.norm_adv_by_std_in_grpo")
    advantage = _advantage(estimator, by_deviation, migration)
    if not advantage and estimator not in (*ESTIMATORS, *OWN_ALGORITHMS):
        migration.note("algorithm.adv_estimator", estimator, "no such advantage here; it is GRPO's")
    kind = LOSSES.get(loss, "ppo")
    name = OWN_ALGORITHMS.get(estimator) or ("grpo" if kind == "ppo" else kind)
    if loss == "gpg" and advantage == {"type": "rloo"}:
        name, advantage = "rloo", {}
    if estimator in ESTIMATORS and flat[f"{ROLLOUT}.n"] == 1 and not flat["distillation.enabled"]:
        name, advantage = "reinforce", {"baseline": "mean"}
        migration.note(
            f"{ROLLOUT}.n", 1, "a group of one has no baseline in verl, so the advantage is the "
            "reward; here it is the reward less the mean of those before",
        )  # fmt: skip
    migration.set("algorithm.name", name)
    if advantage:
        migration.set("algorithm.advantage", advantage)
    kind = _loss(loss, name, migration)
    _aggregation(flat, migration, kind)
    _clip(flat, migration, kind)
    _critic(flat, migration, name)


def _advantage(estimator: str, by_deviation: bool, migration: Migration) -> Tree:
    """The section of the advantage, empty for that of the loss's own preset."""
    if estimator in ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"):
        migration.note(
            "algorithm.adv_estimator", estimator, "advantages of N tokens are divided by the "
            "population's deviation, in verl by the sample's, which is larger by sqrt(N / (N - 1))",
        )  # fmt: skip
    if estimator == "gdpo":
        migration.note(
            "algorithm.adv_estimator", estimator, "advantages are divided by their deviation over "
            "completions, in verl they are normalised over tokens",
        )  # fmt: skip
    if estimator == "gpg":
        migration.note(
            "algorithm.adv_estimator", estimator, "advantages are scaled by groups / groups with a "
            "signal, in verl by completions / completions with a reward other than 0",
        )  # fmt: skip
    if not by_deviation and estimator in ("grpo", "grpo_vectorized"):
        return {"scale_rewards": "none"}
    if not by_deviation and estimator == "grpo_passk":
        migration.note(
            "algorithm.norm_adv_by_std_in_grpo", False, "pass_at_k divides by the deviation"
        )
    kind = ESTIMATORS.get(estimator)
    return {} if kind is None else {"type": kind}


def _loss(loss: str, name: str, migration: Migration) -> str:
    """The type of our loss."""
    key = f"{ACTOR}.policy_loss.loss_mode"
    if loss == "gpg" and name in ("rloo", "remax", "gpg"):
        return loss_type(migration, key, name, "reinforce")
    if loss not in LOSSES:
        migration.note(
            key, loss, "no such loss here; it is the clipped one, whose gradient is that of the "
            "plain policy gradient as long as a rollout has one update",
        )  # fmt: skip
    return loss_type(migration, key, name, LOSSES.get(loss, "ppo"))


def _aggregation(flat: Tree, migration: Migration, kind: str) -> None:
    key = f"{ACTOR}.loss_agg_mode"
    mode, length = flat.pop(key), flat["data.max_response_length"]
    if kind in ("gspo", "sapo") and mode != "seq-mean-token-mean":
        migration.note(
            key, mode, f"verl's {kind} does not read it, and is seq-mean-token-mean; so are the "
            f"terms of the KL and the entropy here, which are {mode} in verl",
        )  # fmt: skip
        mode = "seq-mean-token-mean"
    if mode not in AGGREGATIONS:
        migration.note(key, mode, "no such mean here; it is token-mean, another learning rate")
        mode = "token-mean"
    migration.set("algorithm.loss.agg_mode", mode)
    factor = flat.pop(f"{ACTOR}.loss_scale_factor", None)
    if factor is not None and factor != length:
        migration.note(
            f"{ACTOR}.loss_scale_factor", factor, "seq-mean-token-sum-norm divides by "
            f"max_response_length={length}",
        )  # fmt: skip


def _clip(flat: Tree, migration: Migration, kind: str) -> None:
    both, taus = (
        flat.pop(f"{ACTOR}.clip_ratio"),
        [flat.pop(f"{ACTOR}.tau_pos"), flat.pop(f"{ACTOR}.tau_neg")],
    )
    low, high = (flat.pop(f"{ACTOR}.clip_ratio_{bound}", both) for bound in ("low", "high"))
    dual = flat.pop(f"{ACTOR}.clip_ratio_c", None)
    if both not in (low, high):
        migration.note(
            f"{ACTOR}.clip_ratio", both, f"verl does not read it: clip_ratio_low={low} and "
            f"clip_ratio_high={high} are set",
        )  # fmt: skip
    _covariance(flat, migration, kind)
    if kind == "sapo":
        migration.set("algorithm.loss.tau_pos", taus[0])
        migration.set("algorithm.loss.tau_neg", taus[1])
    if kind in ("sapo", "kl_cov", "reinforce"):
        return
    migration.set("algorithm.loss.clip_ratio_low", low)
    migration.set("algorithm.loss.clip_ratio_high", high)
    if kind not in ("cispo", "gspo", "clip_cov"):  # whose loss does not read it
        migration.set("algorithm.loss.clip_ratio_dual", dual)


def _covariance(flat: Tree, migration: Migration, kind: str) -> None:
    """Set the keys of Clip-Cov and KL-Cov."""
    prefix = f"{ACTOR}.policy_loss"
    own: dict[str, dict[str, str | None]] = {
        "clip_cov": {"clip_cov_ratio": "ratio", "clip_cov_lb": None, "clip_cov_ub": None},
        "kl_cov": {"kl_cov_ratio": "ratio", "ppo_kl_coef": "coef"},
    }
    for loss, keys in own.items():
        for theirs, ours in keys.items():
            value, usual = flat.pop(f"{prefix}.{theirs}"), DEFAULTS[f"{prefix}.{theirs}"]
            if kind == loss and ours is not None:
                migration.set(f"algorithm.loss.{ours}", value)
            elif kind == loss and value != usual:
                migration.note(f"{prefix}.{theirs}", value, f"it is {usual:g}")
    if kind in own:
        migration.note(
            f"{ACTOR}.policy_loss.loss_mode", kind, "tokens are chosen by the log-probs before the "
            "rollout's first update, in verl by those of each update",
        )  # fmt: skip


def carry_distillation(flat: Tree, migration: Migration) -> None:
    """Set a teacher in place of the rewards; the policy gradient of the reverse KL."""
    names = ("loss_mode", "use_task_rewards", "use_policy_gradient")
    kind, rewarded, by_gradient = (flat.pop(f"{DISTILLATION}.{name}") for name in names)
    clip = [flat.pop(f"{DISTILLATION}.clip_ratio_{bound}") for bound in ("low", "high")]
    if not flat.pop("distillation.enabled"):
        return
    teachers = [
        key for key in flat if key.startswith("distillation.") and key[-10:] == "model_path"
    ]
    if not teachers:
        raise ValueError(
            "distillation.teacher_models.teacher_model.model_path is not given; add it to the "
            "command"
        )
    teacher, *others = [flat.pop(key) for key in teachers]
    for key, other in zip(teachers[1:], others, strict=True):
        migration.note(key, other, "there is one teacher, the first")
    is_served = str(teacher).startswith(("http://", "https://"))
    aggregation = migration.tree["algorithm"]["loss"]["agg_mode"]
    migration.tree["algorithm"] = {
        "name": "on_policy_distillation",
        "advantage": {
            "teacher": {"type": "server", "url": teacher} if is_served else {"path": teacher}
        },
        "loss": {
            "agg_mode": aggregation, "clip_ratio_low": clip[0], "clip_ratio_high": clip[1],
            "clip_ratio_dual": 3.0,
        },
    }  # fmt: skip
    if not (by_gradient and kind in ("k1", "kl")):
        migration.note(
            f"{DISTILLATION}.loss_mode", kind, "the loss is the policy gradient of k1, the reverse "
            "KL, as with use_policy_gradient",
        )  # fmt: skip
    if not rewarded:
        migration.set("rewards", {"math": {"weight": 0.0}})
    else:
        migration.note(
            f"{DISTILLATION}.use_task_rewards", True, "the rewards' advantage is added to the "
            "teacher's, under one clip; verl adds two losses",
        )  # fmt: skip


def _critic(flat: Tree, migration: Migration, name: str) -> None:
    gamma, lam = flat.pop("algorithm.gamma"), flat.pop("algorithm.lam")
    warmup = flat.pop("trainer.critic_warmup")
    flat.pop("critic.enable", None)
    own = {key: flat.pop(key) for key in list(flat) if key in COMPOSED and key[:7] == "critic."}
    if name != "ppo":
        if name == "reinforce_pp":
            migration.set("algorithm.advantage.gamma", gamma)
        unread = {key: value for key, value in own.items() if value != DEFAULTS.get(key)}
        for key, value in unread.items():
            migration.note(key, value, f"{name} has no critic")
        return
    critic = {
        "path": own.get("critic.model.path"),
        "lr": own["critic.optim.lr"],
        "cliprange_value": own["critic.cliprange_value"],
        "ppo_epochs": own.get("critic.ppo_epochs"),
        "warmup_steps": warmup,
    }
    critic = {key: value for key, value in critic.items() if value is not None}
    migration.set("algorithm.advantage", {"gamma": gamma, "lam": lam, "critic": critic})
    policys_size = min(flat[f"{ACTOR}.ppo_mini_batch_size"], flat["data.train_batch_size"])
    if own.get("critic.ppo_mini_batch_size", policys_size) != policys_size:
        migration.note(
            "critic.ppo_mini_batch_size", own["critic.ppo_mini_batch_size"], "the critic has the "
            f"policy's mini-batches, of {policys_size} prompts",
        )  # fmt: skip
    if own.get("critic.loss_agg_mode", "token-mean") != "token-mean":
        migration.note(
            "critic.loss_agg_mode", own["critic.loss_agg_mode"], "the critic's loss is per token"
        )
    for mine, policys in (
        ("critic.optim.weight_decay", f"{ACTOR}.optim.weight_decay"),
        ("critic.grad_clip", f"{ACTOR}.grad_clip"),
        ("critic.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps"),
        ("critic.optim.lr_warmup_steps_ratio", f"{ACTOR}.optim.lr_warmup_steps_ratio"),
    ):
        if mine in own and own[mine] != flat.get(policys):
            migration.note(mine, own[mine], f"that of the policy: {flat.get(policys)}")


def carry_kl(flat: Tree, migration: Migration) -> None:
    """Set the KL, in the loss or in the reward, and the entropy bonus."""
    if bonus := flat.pop(f"{ACTOR}.entropy_coeff"):
        migration.set("algorithm.entropy.coef", bonus)
    distils = migration.tree["algorithm"]["name"] == "on_policy_distillation"
    in_loss, in_reward = flat.pop(f"{ACTOR}.use_kl_loss"), flat.pop("algorithm.use_kl_in_reward")
    loss = flat.pop(f"{ACTOR}.kl_loss_coef"), flat.pop(f"{ACTOR}.kl_loss_type")
    reward = flat.pop("algorithm.kl_ctrl.kl_coef"), flat.pop("algorithm.kl_penalty")
    kind, horizon, target = (
        flat.pop(f"algorithm.kl_ctrl.{name}") for name in ("type", "horizon", "target_kl")
    )
    in_loss, in_reward = bool(in_loss and loss[0] != 0), bool(in_reward and reward[0] != 0)
    if distils:
        if in_loss or in_reward:
            migration.note("use_kl_loss, use_kl_in_reward", True, "the teacher is the reference")
        return
    if not in_loss and not in_reward:
        return
    if in_loss and in_reward:
        migration.note(
            "algorithm.use_kl_in_reward", True, "the KL is in the loss or in the reward, not in "
            "both; it is in the loss",
        )  # fmt: skip
    coefficient, estimator = loss if in_loss else reward
    set_kl(migration, coefficient, in_loss, _estimator(estimator, in_loss, migration))
    if kind == "adaptive" and not in_loss:
        completions = flat["data.train_batch_size"] * flat[f"{ROLLOUT}.n"]
        set_target(migration, target, "algorithm.kl_ctrl.horizon", horizon, completions)


def _estimator(kind: str, in_loss: bool, migration: Migration) -> str:
    """The estimator of ours; ``k3+`` has the value of k3 and the gradient of k2."""
    if kind.endswith("+") and in_loss:
        migration.note(
            f"{ACTOR}.kl_loss_type", kind, "k2, which has the same gradient; what is logged differs"
        )
        return "k2"
    if kind.rstrip("+") not in KL:
        migration.note("kl_penalty", kind, "no such estimator; it is k1")
    return KL.get(kind.rstrip("+"), "k1")


def carry_correction(flat: Tree, migration: Migration) -> None:
    """Set importance weights and rejection between the engine that samples and the trainer."""
    keys = [key for key in flat if key.startswith(f"{CORRECTION}.")]
    given = {key.removeprefix(f"{CORRECTION}."): flat.pop(key) for key in keys}
    level, most = given.get("rollout_is"), given.get("rollout_is_threshold", 2.0)
    is_number = isinstance(most, int | float)
    set_correction(migration, level, most if is_number else None)
    if level is not None and not is_number:
        migration.note(
            f"{CORRECTION}.rollout_is_threshold", most, "weights are capped at "
            "algorithm.rollout_correction.importance_sampling.threshold, and none is set to 0",
        )  # fmt: skip
    if given["rollout_is_batch_normalize"] and level is not None:
        migration.note(
            f"{CORRECTION}.rollout_is_batch_normalize", True, "weights are not divided by their "
            "mean",
        )  # fmt: skip
    if (kind := given.get("rollout_rs")) is not None:
        highest, lowest = given.get("rollout_rs_threshold"), given.get("rollout_rs_threshold_lower")
        _rejection(kind, highest if lowest is None else f"{lowest}_{highest}", migration)
    if (least := given.get("rollout_token_veto_threshold")) is not None:
        migration.note(
            f"{CORRECTION}.rollout_token_veto_threshold", least, "a completion with one such token "
            "is kept; algorithm.rollout_correction.rejection_sampling masks by its own bound",
        )  # fmt: skip
    if given["bypass_mode"]:
        migration.note(
            f"{CORRECTION}.bypass_mode", True, "old log-probs are always the trainer's own, not "
            f"the engine's; loss_type={given['loss_type']} is not read",
        )  # fmt: skip


def _rejection(kind: str, threshold: Any, migration: Migration) -> None:
    """Set rejection: ``u`` keeps ratios from 1 / u to u, as here; ``l_u`` those from l to u."""
    low, _, high = str(threshold).rpartition("_")
    try:
        lowest, highest = float(low or 1 / float(high)), float(high)
    except ValueError:
        lowest, highest = 0.0, 0.0
    if kind in REJECTIONS and highest > 1 and abs(lowest * highest - 1) < 1e-3:
        rejection = {"level": REJECTIONS[kind], "threshold": highest}
        migration.set("algorithm.rollout_correction.rejection_sampling", rejection)
    else:
        migration.note(
            f"{CORRECTION}.rollout_rs", f"{kind} {threshold}", "ratios are kept between a bound "
            "and its inverse (token, sequence or geometric); nothing is rejected",
        )  # fmt: skip


def carry_filter(flat: Tree, migration: Migration) -> None:
    prefix = "algorithm.filter_groups"
    metric, most = flat.pop(f"{prefix}.metric"), flat.pop(f"{prefix}.max_num_gen_batches")
    drawn = flat.pop("data.gen_batch_size", None)
    if not flat.pop(f"{prefix}.enable"):
        return
    set_resampling(migration, most, gen_batch_size=drawn)
    if metric not in REWARDS_OF_ALL:
        migration.note(
            f"{prefix}.metric", metric, "groups stay whose whole rewards differ; give that score a "
            "reward function of its own in rewards, with weight 0, and name it in "
            "algorithm.filter_groups.range.metric",
        )  # fmt: skip
    migration.note(
        f"{prefix}.max_num_gen_batches", most, "after so many draws a step uses the groups it has"
    )
