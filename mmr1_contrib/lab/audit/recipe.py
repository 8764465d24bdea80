"""The recipe of a step: what its configuration says, in the audit's own words.

A configuration is translated key by key. A key that is not known here, or has a value that the
audit does not recompute, is a reason not to judge: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmr1_contrib.lab.audit.step_file import AuditError

Tree = Mapping[str, Any]

IRRELEVANT = (
    *("seed", "full_determinism", "eval", "resources", "trainer", "algorithm.name"),
    *("algorithm.filter_groups", "algorithm.kl.target", "algorithm.entropy.target"),
    *("algorithm.kl.reference.offload", "algorithm.loss.target", "algorithm.advantage.critic"),
    *("model.gradient_checkpointing", "model.use_liger_kernel", "model.sharing"),
    *("model.trust_remote_code", "model.lora.merge", "optimizer.offload"),
    *("data.train", "data.train_batch_size", "data.format", "data.prompt_template"),
    *("data.media_root", "data.curriculum", "data.num_workers"),
    *("data.max_bad_fraction", "data.max_invalid_fraction", "data.video.backend"),
    *("data.image.resize", "rollout", "rewards"),
    *(f"scoring.{key}" for key in ("workers", "timeout_s", "allow_weak_sandbox")),
    "scoring.max_invalid_fraction",
)
"""Keys that change what is sampled, or how fast, and not what a recorded step computes from it."""
TAKEN = (
    *("algorithm.kl.coef", "algorithm.entropy.coef", "algorithm.advantage.teacher"),
    "algorithm.advantage.step_rewards",
    "algorithm.loss.coef",
)
"""Keys whose value the manifest's coefficients, or a recorded quantity, state for this step."""
OFF: Mapping[str, tuple[Any, ...]] = {
    "environment": (None,),
    "algorithm.ptx": (None,),
    "algorithm.router_replay": ("disabled", "compare"),
    "algorithm.router_aux_loss_coef": (None,),
    "algorithm.advantage.normalize_rewards": (False,),
    "optimizer.state_dtype": ("float32",),
    "model.lora.load_in_4bit": (False,),
    "model.lora.dropout": (0, 0.0),
    "model.lora.path": (None,),
    "rollout.views": (None,),
    "algorithm.kl.reference.mixup_alpha": (1.0,),
}
"""Keys that the audit does not recompute, with the values at which they do nothing."""
ADVANTAGES = (
    *("grpo", "rloo", "pass_at_k", "optimal_baseline", "gpg", "gdpo", "reinforce", "reinforce_pp"),
    *("reinforce_pp_baseline", "remax", "gae", "distillation", "process"),
)
LOSSES = (
    *("ppo", "gspo", "sequence_ppo", "cispo", "sapo", "reinforce", "clip_cov", "kl_cov"),
    *("gmpo", "topr", "dppo"),
)
USED: Mapping[str, tuple[Any, ...] | None] = {
    "model.path": None,
    "model.dtype": None,
    "model.freeze_vision_tower": None,
    "model.lora.rank": None,
    "model.lora.alpha": None,
    "model.lora.target_modules": None,
    "data.system_prompt": None,
    "data.chat_template": (None,),
    "data.chat_template_kwargs": None,
    "data.image.min_pixels": None,
    "data.image.max_pixels": None,
    **{
        f"data.video.{key}": None
        for key in ("fps", "max_frames", "num_frames", "min_pixels", "max_pixels", "total_pixels")
    },
    "algorithm.advantage.type": ADVANTAGES,
    "algorithm.advantage.reward_clip_range": None,
    "algorithm.advantage.scale_rewards": ("group", "batch", "none"),
    "algorithm.advantage.epsilon": None,
    "algorithm.advantage.gamma": None,
    "algorithm.advantage.lam": None,
    "algorithm.advantage.coef": None,
    "algorithm.advantage.baseline": None,
    "algorithm.advantage.kl_to_go": None,
    "algorithm.loss.type": LOSSES,
    "algorithm.loss.agg_mode": None,
    "algorithm.loss.agg_scope": None,
    "algorithm.loss.clip_ratio_low": None,
    "algorithm.loss.clip_ratio_high": None,
    "algorithm.loss.clip_ratio_dual": None,
    "algorithm.loss.top_entropy_quantile": None,
    "algorithm.loss.clip_low": None,
    "algorithm.loss.clip_high": None,
    "algorithm.loss.delta": None,
    "algorithm.loss.tau_pos": None,
    "algorithm.loss.tau_neg": None,
    "algorithm.loss.ratio": None,
    "algorithm.loss.importance": ("none", "token", "sequence", "per_decision"),
    "algorithm.kl.type": ("loss", "reward", "full"),
    "algorithm.kl.estimator": None,
    "algorithm.kl.use_bias_correction_kl": None,
    "algorithm.kl.jsd_beta": None,
    "algorithm.kl.reference.type": ("initial", "model", "moving"),
    "algorithm.kl.reference.path": None,
    "algorithm.kl.reference.sync_steps": None,
    "algorithm.perception.coef": None,
    "algorithm.perception.mask_ratio": None,
    "algorithm.rollout_correction.importance_sampling.level": ("auto", "token", "sequence"),
    "algorithm.rollout_correction.importance_sampling.threshold": None,
    "algorithm.rollout_correction.rejection_sampling.level": ("token", "sequence", "geometric"),
    "algorithm.rollout_correction.rejection_sampling.threshold": None,
    "algorithm.rollout_correction.off_policy_mask_threshold": None,
    "algorithm.ppo_epochs": None,
    "algorithm.ppo_mini_batch_size": None,
    "algorithm.mask_truncated_completions": None,
    "optimizer.lr": None,
    "optimizer.betas": None,
    "optimizer.weight_decay": None,
    "optimizer.decay_norms_and_biases": (True, False),
    "optimizer.lr_of_parts": None,
    "optimizer.max_grad_norm": None,
    "optimizer.scheduler.type": ("constant", "linear", "cosine"),
    "optimizer.scheduler.warmup_steps": None,
    "optimizer.scheduler.min_lr": None,
    "optimizer.scheduler.steps": None,
}
"""Keys that the audit reads, with the values that it knows; None: any."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A resolved configuration whose every key the audit understands.

    Attributes:
        tree: The configuration.
        coefficients: Coefficients of the loss in this step: kl, entropy.
    """

    tree: Tree
    coefficients: Mapping[str, float]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key; the default where it, or a section above, is absent."""
        value: Any = self.tree
        for name in key.split("."):
            if not isinstance(value, Mapping) or value.get(name) is None:
                return default
            value = value[name]
        return value

    @property
    def samples_with_trained_weights(self) -> bool:
        """True if the engine samples from the very weights that the step updates."""
        in_step = self.get("rollout.max_off_policy_steps", 0) == 0
        filters = self.get("algorithm.filter_groups") or {}
        earlier = filters.get("type") == "replay" or bool(filters.get("keep_surplus"))
        return self.get("rollout.engine.type") == "hf" and in_step and not earlier

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run, by which a falling schedule is stretched."""
        batch = int(self.get("data.train_batch_size"))
        updates = batch // int(self.get("algorithm.ppo_mini_batch_size", batch))
        idle = int(self.get("algorithm.advantage.critic.warmup_steps", 0))
        steps = int(self.get("trainer.max_steps")) - idle
        return steps * updates * int(self.get("algorithm.ppo_epochs", 1))

    @property
    def importance_level(self) -> str:
        """Level of the weights for the engine's own probabilities: token, sequence or none."""
        level = self.get("algorithm.rollout_correction.importance_sampling.level", "none")
        if level != "auto":
            return str(level)
        return "none" if self.samples_with_trained_weights else "token"


def read_recipe(tree: Tree, coefficients: Mapping[str, float]) -> Recipe:
    """Check that every key of a configuration is understood.

    Raises:
        AuditError: If the audit does not recompute a key or a value; names them all.
    """
    if problems := list(_problems(tree)):
        raise AuditError("it cannot be recomputed: " + "; ".join(problems))
    return Recipe(tree, coefficients)


def _problems(tree: Tree) -> Iterator[str]:
    for key, value in _leaves(tree):
        if known := _prefix_in(key, OFF):
            if value not in OFF[known]:
                yield f"{key}={value}"
        elif key in USED:
            values = USED[key]
            if values is not None and value is not None and value not in values:
                yield f"{key}={value}"
        elif not _prefix_in(key, (*IRRELEVANT, *TAKEN)) and value is not None:
            yield f"{key}={value}, a key that the audit does not know"
    yield from _pairs(Recipe(tree, {}))


def _pairs(recipe: Recipe) -> Iterator[str]:
    """Combinations that need what a step file does not hold."""
    if any(reward.get("gate") for reward in recipe.get("rewards", {}).values()):
        yield "rewards.NAME.gate"


def _prefix_in(key: str, prefixes: Any) -> str | None:
    """Return the prefix that a key equals or lies below."""
    return next((p for p in prefixes if key == p or key.startswith(f"{p}.")), None)


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    whole = ("optimizer.lr_of_parts", "data.chat_template_kwargs", "rewards")
    if isinstance(tree, Mapping) and tree and prefix not in whole:
        for name, value in tree.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree
