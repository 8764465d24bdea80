"""The ``algorithm`` section: which algorithm, what its paper sets, what makes no sense."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.config.section import Positive, Section
from mmr1.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        name: f"mmr1.trainer.algorithms.{name}:build"
        for name in (
            "reinforce",
            "rloo",
            "remax",
            "reinforce_pp",
            "reinforce_pp_baseline",
            "grpo",
            "process_grpo",
            "dr_grpo",
            "gpg",
            "dapo",
            "gspo",
            "cispo",
            "sapo",
            "ppo",
            "t_grpo",
        )
    },
    group="mmr1.algorithms",
)
"""Algorithms by name. Only names: what they load stays unloaded until a run builds it."""

ALGORITHM_DEFAULTS: dict[str, dict[str, Any]] = {
    "reinforce": {"loss_agg_mode": "token-mean"},
    "rloo": {"loss_agg_mode": "token-mean"},
    "remax": {"loss_agg_mode": "token-mean"},
    "reinforce_pp": {"loss_agg_mode": "token-mean", "use_kl_loss": False, "kl_estimator": "k1"},
    "reinforce_pp_baseline": {"loss_agg_mode": "token-mean", "kl_estimator": "k2"},
    "dr_grpo": {"loss_agg_mode": "seq-mean-token-sum-norm"},
    "gpg": {"loss_agg_mode": "token-mean"},
    "dapo": {"loss_agg_mode": "token-mean", "clip_ratio_high": 0.28, "dynamic_sampling": True},
    "gspo": {
        "importance_sampling_level": "sequence",
        "clip_ratio_low": 3e-4,
        "clip_ratio_high": 4e-4,
    },
    "cispo": {"loss_agg_mode": "token-mean", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
    "ppo": {
        "loss_agg_mode": "token-mean",
        "use_kl_loss": False,
        "kl_estimator": "k1",
        "critic": {},
    },
}
"""What an algorithm's paper sets otherwise than the defaults below."""

GROUP_BASELINE = {"rloo", "reinforce_pp_baseline", "gpg", "dapo", "gspo", "cispo", "sapo"}
GROUP_BASELINE |= {"grpo", "t_grpo", "process_grpo", "dr_grpo"}
_IMPORTANCE = {"reinforce", "rloo", "remax", "gpg"}
_CLIPPED = {"grpo", "process_grpo", "dr_grpo", "dapo", "reinforce_pp", "reinforce_pp_baseline"}
_CLIPPED |= {"ppo", "t_grpo"}
# Keys that only some of the built-in algorithms read.
_READ_BY = {
    "clip_ratio_low": _CLIPPED | _IMPORTANCE | {"gspo", "cispo"},
    "clip_ratio_high": _CLIPPED | _IMPORTANCE | {"gspo", "cispo"},
    "clip_ratio_dual": _CLIPPED | {"gspo"},
    "importance_sampling_level": {"grpo", "t_grpo", "dr_grpo", "dapo", "gspo"},
    "importance_sampling": _IMPORTANCE,
    "baseline_momentum": {"reinforce"},
    "sapo_tau": {"sapo"},
    "step_rewards": {"process_grpo"},
    "critic": {"ppo"},
}


class CriticConfig(Section):
    """The critic: a value head on a vision-language model of its own.

    Betas, weight decay and gradient norm of its AdamW are those of the ``optimizer`` section.
    """

    path: str | None = Field(
        None, description="What it begins as: a model or a reward model; model.path if not set"
    )
    lr: float = Field(
        1e-5, gt=0, description="Learning rate, constant after optimizer.warmup_steps"
    )
    gamma: float = Field(1.0, gt=0, le=1, description="Discount per token")
    lam: float = Field(1.0, ge=0, le=1, description="λ of GAE; 1 trusts the reward alone")
    cliprange_value: float | None = Field(
        0.2, gt=0, description="Farthest that a value moves per rollout; null: no clip"
    )
    ppo_epochs: Positive | None = Field(
        None, description="Its optimizer steps on a rollout; as many as the policy's if not set"
    )
    warmup_steps: int = Field(0, ge=0, description="First steps, in which it learns alone")


class AlgorithmConfig(Section):
    """The advantage and the loss."""

    name: str = Field("grpo", description="A name of docs/algorithms.md, or file.py:build")
    clip_ratio_low: float = Field(0.2, ge=0)
    clip_ratio_high: float = Field(0.2, ge=0)
    clip_ratio_dual: float | None = Field(
        None, gt=1, description="Bound of the ratio where the advantage is negative, e.g. 3"
    )
    importance_sampling_level: Literal["token", "sequence", "sequence_product"] = Field(
        "token",
        description="Clip the ratio of each token, of the sequence as its geometric mean (GSPO), "
        "or of the sequence as the product over its tokens (the R1 paper)",
    )
    importance_sampling: Literal["clip", "none", "token", "per_decision", "sequence"] = Field(
        "clip", description="Policy gradients after the first update of a rollout"
    )
    sapo_tau: tuple[float, float] = Field(
        (1.0, 1.05), description="Gate temperatures for positive and negative advantages"
    )
    baseline_momentum: float = Field(0.9, ge=0, lt=1, description="Of the moving average")
    kl_coef: float = Field(0.0, ge=0, description="0 loads no reference policy")
    kl_estimator: Literal["k1", "k2", "k3", "absolute", "k1_forward", "k3_forward", "full"] = Field(
        "k3", description="full: exact, over the whole vocabulary, in the loss alone"
    )
    use_kl_loss: bool = Field(
        True, description="The KL term is in the loss; false: a penalty in the reward"
    )
    kl_target: float | None = Field(
        None, gt=0, description="Adapt kl_coef to this KL per token; fixed if not set"
    )
    kl_adaptation_rate: float = Field(0.1, gt=0, description="Of the adaptation")
    ref_model_sync_steps: int = Field(
        0, ge=0, description="Steps after which the reference becomes the policy; 0: never"
    )
    offload_reference: bool = Field(
        False, description="Keep the reference in main memory while it does not score"
    )
    entropy_coef: float = Field(0.0, ge=0, description="Entropy bonus per token")
    entropy_target: float | None = Field(
        None, gt=0, description="Adapt entropy_coef to this entropy per token; fixed if not set"
    )
    entropy_adaptation_rate: float = Field(0.1, gt=0, description="Of the adaptation")
    ptx_coef: float = Field(
        0.0, ge=0, description="Of the supervised loss on data.ptx, mixed into every update"
    )
    ptx_batch_size: Positive = Field(32, description="Demonstrations of data.ptx per step")
    loss_agg_mode: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = Field(
        "seq-mean-token-mean", description="How token losses are added up"
    )
    ppo_epochs: Positive = 1
    critic: CriticConfig | None = Field(None, description="For ppo, or an algorithm of your own")
    rollout_is: Literal["auto", "none", "token", "sequence"] = Field(
        "auto",
        description="Weigh losses by trainer's over engine's probability; auto: token when the "
        "rollouts run ahead",
    )
    rollout_is_threshold: float = Field(2.0, gt=0, description="Largest such weight")
    rollout_rs_threshold: float | None = Field(
        None, gt=1, description="Leave out tokens whose ratio is above this or below its inverse"
    )
    mask_truncated_completions: bool = Field(
        False, description="Leave truncated completions out of the loss"
    )
    step_rewards: str | None = Field(
        None, description="file.py:function that rewards the steps of a completion"
    )
    dynamic_sampling: bool = Field(
        False, description="Replace groups of equal rewards by new ones before the update"
    )
    oversample: float = Field(
        1.0, ge=1, description="Prompts drawn at first, as a multiple of rollout.batch_size"
    )
    max_num_gen_batches: Positive = Field(
        10, description="Most draws of a step; none with signal by then ends the run"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_paper(cls, values: Any) -> Any:
        """Complete what was not set by what the algorithm's paper uses."""
        if not isinstance(values, dict):
            return values
        return {**ALGORITHM_DEFAULTS.get(values.get("name", "grpo"), {}), **values}

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        ALGORITHMS.check(name)
        return name

    @model_validator(mode="after")
    def _make_sense(self) -> AlgorithmConfig:
        for key, needed in (
            ("kl_target", "kl_coef"),
            ("ref_model_sync_steps", "kl_coef"),
            ("offload_reference", "kl_coef"),
            ("entropy_target", "entropy_coef"),
        ):
            if getattr(self, key) and not getattr(self, needed):
                raise ValueError(
                    f"{key} is set and {needed} is 0, so it would do nothing; set {needed} above "
                    f"0, or leave {key} out"
                )
        if self.name == "ppo" and self.critic is None:
            raise ValueError(
                "ppo needs a critic and critic is null; leave algorithm.critic out for the "
                "defaults, or use an algorithm without one, such as reinforce_pp"
            )
        if self.name == "process_grpo" and self.step_rewards is None:
            raise ValueError(
                "process_grpo learns from the rewards of steps and step_rewards is not set; name a "
                "file.py:function in algorithm.step_rewards, or use name=grpo"
            )
        if self.name == "process_grpo" and not self.use_kl_loss:
            raise ValueError(
                "process_grpo learns from the rewards of steps, which hold no KL; set "
                "use_kl_loss=true"
            )
        if self.kl_estimator == "full" and not self.use_kl_loss:
            raise ValueError(
                "kl_estimator=full is measured in the update, after the rewards; set "
                "use_kl_loss=true, "
                "or an estimator of sampled tokens such as k1"
            )
        if self.kl_estimator == "full" and self.offload_reference:
            raise ValueError(
                "kl_estimator=full needs the reference in every micro-batch of the update; leave "
                "offload_reference out, or take an estimator of sampled tokens such as k3"
            )
        if not self.dynamic_sampling and self.oversample > 1:
            raise ValueError(
                "oversample draws spare prompts for dynamic sampling, which is off; set "
                "dynamic_sampling=true, or leave oversample out"
            )
        self._refuse_unread()
        return self

    def _refuse_unread(self) -> None:
        """A key that the algorithm does not read would be ignored in silence."""
        if self.name not in ALGORITHMS.builtin:
            return
        for key, readers in _READ_BY.items():
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default and self.name not in readers:
                raise ValueError(
                    f"{self.name} does not read {key} (it is {value!r}); leave it out, or choose "
                    f"one of {', '.join(sorted(readers))}"
                )
