"""The ``algorithm`` section: its keys and defaults, and the combinations that it refuses.

What holds for one algorithm only stands in its file; see ``algorithm_spec.py``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.config.algorithm_spec import (
    AlgorithmSpec,
    algorithm_names,
    algorithm_readers,
    algorithm_specs,
)
from mmr1.config.secrets import mask_text
from mmr1.config.section import Positive, Section


class CriticConfig(Section):
    """The critic: a second vision-language model with a value head.

    Betas, weight decay and gradient norm of its AdamW are those of the ``optimizer`` section.
    """

    path: str | None = Field(
        None,
        description="Initial weights: a model, or a reward model of mmr1 rm; model.path if not set",
    )
    lr: float = Field(
        1e-5, gt=0, description="Learning rate, constant after optimizer.warmup_steps"
    )
    gamma: float = Field(1.0, gt=0, le=1, description="Discount per token")
    lam: float = Field(1.0, ge=0, le=1, description="λ of GAE; 1: the return less the value")
    cliprange_value: float | None = Field(
        0.2, gt=0, description="Largest change of a value per rollout; null: no clip"
    )
    ppo_epochs: Positive | None = Field(
        None, description="Its passes over a rollout; algorithm.ppo_epochs if not set"
    )
    ppo_mini_batch_size: Positive | None = Field(
        None,
        description="Prompts per optimizer step of its own; algorithm.ppo_mini_batch_size if not "
        "set",
    )
    bootstrap_truncated: bool = Field(
        False,
        description="A completion that the limit cut off goes on with the critic's value; else its "
        "return ends with it",
    )
    warmup_steps: int = Field(
        0, ge=0, description="First steps, in which the critic is updated and the policy is not"
    )


class ReplayConfig(Section):
    """Groups with a signal that are learned from again (VL-Rethinker's selective sample replay)."""

    capacity: Positive = Field(64, description="Number of the last groups with a signal to keep")
    alpha: float = Field(
        1.0, ge=0, description="A group is drawn by its mean absolute advantage to this power"
    )


class AlgorithmConfig(Section):
    """The advantage and the loss. Defaults are GRPO's; docs/algorithms.md has the others'."""

    name: str = Field("grpo", description="A name of docs/algorithms.md, or file.py:build")
    adv_estimator: (
        Literal["grpo", "dr_grpo", "rloo", "batch_std", "pass_at_k", "optimal_baseline", "gdpo"]
        | None
    ) = Field(
        None,
        description="Another advantage of the group under the algorithm's loss; docs/algorithms.md "
        "has them. Default: the algorithm's own",
    )
    clip_ratio_low: float = Field(0.2, ge=0, description="The ratio is clipped below at 1 - this")
    clip_ratio_high: float = Field(0.2, ge=0, description="The ratio is clipped above at 1 + this")
    clip_ratio_dual: float | None = Field(
        None, gt=1, description="Bound of the ratio where the advantage is negative, e.g. 3"
    )
    importance_sampling_level: Literal["token", "sequence", "sequence_product"] = Field(
        "token",
        description="Whose ratio is clipped: each token's; sequence: the geometric mean over the "
        "completion (GSPO); sequence_product: the product over the completion (the R1 paper, "
        "RLOO). Of a completion, token-mean is only taken if it is set",
    )
    importance_sampling: Literal["clip", "none", "token", "per_decision", "sequence"] = Field(
        "clip",
        description="How a plain policy gradient corrects for the policy that sampled, with "
        "ppo_epochs above 1: PPO's clip, or importance weights",
    )
    sapo_tau: tuple[float, float] = Field(
        (1.0, 1.05), description="Gate temperatures for positive and negative advantages"
    )
    clip_cov_ratio: float = Field(
        2e-4, gt=0, le=1, description="Clip-Cov: share of the tokens taken out of the loss"
    )
    clip_cov_lb: float = Field(1.0, description="Clip-Cov: they have a covariance above this, ...")
    clip_cov_ub: float = Field(5.0, description="... and below this")
    kl_cov_ratio: float = Field(
        2e-3,
        gt=0,
        le=1,
        description="KL-Cov: share of the tokens that are held, those of the highest covariance",
    )
    kl_cov_coef: float = Field(
        1.0, gt=0, description="KL-Cov: coefficient of their KL (verl: ppo_kl_coef)"
    )
    top_entropy_quantile: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a mini-batch's tokens, those of the highest entropy, that the policy "
        "loss learns from, e.g. 0.2 (TRL)",
    )
    baseline: Literal["moving_average", "mean", "batch_mean"] = Field(
        "moving_average",
        description="REINFORCE's baseline: the exponential moving average of the batches' mean "
        "rewards; the mean of all rewards so far; the mean of the batch's own rewards",
    )
    baseline_momentum: float = Field(
        0.9, ge=0, lt=1, description="Momentum of the moving average that is the baseline"
    )
    gamma: float = Field(
        1.0, gt=0, le=1, description="Discount per token, of REINFORCE and REINFORCE++"
    )
    reward_clip_range: tuple[float, float] | None = Field(
        None, description="Rewards are clipped to [low, high] before the advantages (TRL)"
    )
    normalize_rewards: bool = Field(
        False,
        description="Rewards less their mean, over their deviation, both of all rewards so far; "
        "reward_clip_range then clips the result",
    )
    kl_coef: float = Field(0.0, ge=0, description="0 loads no reference policy")
    kl_estimator: Literal["k1", "k2", "k3", "absolute", "k1_forward", "k3_forward", "full"] = Field(
        "k3",
        description="full: the exact KL over the whole vocabulary, in the loss only. k1 if not set "
        "and use_kl_loss is false",
    )
    jsd_beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="With kl_estimator=full, GKD's divergence: 1 KL(policy || reference), 0 "
        "KL(reference || policy), between them the generalized Jensen-Shannon divergence (TRL: "
        "beta of GKD)",
    )
    kl_level: Literal["token", "sequence"] = Field(
        "token",
        description="Whose probabilities the KL term compares: each token's; sequence: the whole "
        "completion's (the R1 paper)",
    )
    use_bias_correction_kl: bool = Field(
        False,
        description="Multiply the KL term by the ratio to the policy that sampled (as in TRL)",
    )
    use_kl_loss: bool = Field(
        True, description="true: the KL is a term of the loss; false: a penalty in the reward"
    )
    kl_target: float | None = Field(
        None, gt=0, description="Adapt kl_coef to this KL per token; fixed if not set"
    )
    kl_adaptation_rate: float = Field(0.1, gt=0, description="How fast kl_coef adapts")
    ppo_kl_coef: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the KL to the policy before the rollout's first update: PPO's "
        "penalty",
    )
    ppo_kl_target: float | None = Field(
        None,
        gt=0,
        description="Halve or double ppo_kl_coef to reach this KL per token; fixed if not set",
    )
    ref_model_path: str | None = Field(
        None,
        description="A reference of its own, such as a teacher: a model, or the address of a vLLM "
        "server that has one; default: the policy at the start",
    )
    ref_model_sync_steps: int = Field(
        0, ge=0, description="Copy the policy to the reference after every so many steps; 0: never"
    )
    ref_model_mixup_alpha: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the policy in that copy; below 1 the reference moves part of the way",
    )
    offload_reference: bool = Field(
        False,
        description="Keep the reference in main memory except while it computes log-probs",
    )
    entropy_coef: float = Field(0.0, ge=0, description="Entropy bonus per token")
    entropy_target: float | None = Field(
        None, gt=0, description="Adapt entropy_coef to this entropy per token; fixed if not set"
    )
    entropy_adaptation_rate: float = Field(0.1, gt=0, description="How fast entropy_coef adapts")
    ptx_coef: float = Field(
        0.0, ge=0, description="Coefficient of the supervised loss on data.ptx in every update"
    )
    ptx_loss: Literal["nll", "distillation"] = Field(
        "nll",
        description="nll: the demonstrations' negative log-likelihood; distillation: the "
        "divergence from the reference at their tokens, as kl_estimator=full measures it",
    )
    ptx_batch_size: Positive = Field(32, description="Demonstrations of data.ptx per step")
    loss_agg_mode: Literal[
        "seq-mean-token-mean",
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
    ] = Field("seq-mean-token-mean", description="How token losses are added up")
    loss_agg_scope: Literal["mini-batch", "rollout"] = Field(
        "mini-batch",
        description="Whose sequences and tokens are counted in loss_agg_mode: each mini-batch's "
        "(verl, EasyR1), or the whole rollout's (TRL's dapo and cispo)",
    )
    ppo_epochs: Positive = Field(1, description="Passes over a rollout (TRL: num_iterations)")
    ppo_mini_batch_size: Positive | None = Field(
        None,
        description="Prompts per optimizer step; must divide rollout.batch_size (EasyR1: "
        "worker.actor.global_batch_size). Default: all of the rollout",
    )
    critic: CriticConfig | None = Field(None, description="For ppo, or an algorithm of your own")
    rollout_is: Literal["auto", "none", "token", "sequence"] = Field(
        "auto",
        description="Multiply losses by the trainer's probability over the engine's; auto: token "
        "when rollouts are asynchronous or replayed, or rollout.dtype is not model.dtype",
    )
    rollout_is_threshold: float = Field(2.0, gt=0, description="Largest such weight")
    rollout_rs_threshold: float | None = Field(
        None, gt=1, description="Mask tokens whose ratio is above this or below its inverse"
    )
    rollout_rs: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="That ratio: the token's; or the product, or the geometric mean, over the "
        "completion, which is then masked as a whole (verl)",
    )
    off_policy_mask_threshold: float | None = Field(
        None,
        gt=0,
        description="Mask tokens of negative advantage in completions whose mean log-ratio of the "
        "engine to the policy is above this, in nats, e.g. 0.5 (TRL; DeepSeek-V3.2)",
    )
    mask_truncated_completions: bool = Field(
        False, description="Mask truncated completions in the loss"
    )
    step_rewards: str | None = Field(
        None,
        description="What rewards the steps of a completion: file.py:function, or a checkpoint of "
        "mmr1 rm with rm.supervision=process",
    )
    dynamic_sampling: bool = Field(
        False, description="Replace groups whose rewards are all equal before the update"
    )
    filter_key: str | None = Field(
        None,
        description="Dynamic sampling keeps groups whose mean value of this reward function lies "
        "between filter_low and filter_high; overall: the whole reward. Default: groups whose "
        "rewards differ",
    )
    filter_low: float = Field(0.0, description="Groups of this mean or less are replaced")
    filter_high: float = Field(1.0, description="Groups of this mean or more are replaced")
    replay: ReplayConfig | None = Field(
        None,
        description="Groups without a signal are replaced by earlier ones that had one; {} takes "
        "the defaults",
    )
    oversample: float = Field(
        1.0, ge=1, description="Prompts per draw, as a multiple of the groups that are missing"
    )
    max_num_gen_batches: Positive = Field(
        10,
        description="Most draws of prompts per step; if all groups then have equal rewards, the "
        "run ends",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_paper(cls, values: Any) -> Any:
        """Set the keys that are not given to the values of the algorithm's paper."""
        if not isinstance(values, dict):
            return values
        spec = algorithm_specs().get(values.get("name", "grpo"))
        filled = values if spec is None else {**spec.defaults, **values}
        if filled.get("use_kl_loss", True) is False and "kl_estimator" not in values:
            filled = {**filled, "kl_estimator": "k1"}  # a penalty's expected gradient is the KL's
        of_completion = filled.get("importance_sampling_level", "token") != "token"
        by_token = filled.get("loss_agg_mode") == "token-mean" and "loss_agg_mode" not in values
        if of_completion and by_token:  # a completion would count once more for each of its tokens
            filled = {**filled, "loss_agg_mode": "seq-mean-token-mean"}
        return filled

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        algorithm_names().check(name)
        return name

    @model_validator(mode="after")
    def _make_sense(self) -> AlgorithmConfig:
        for key, needed in (
            ("kl_target", "kl_coef"),
            ("ppo_kl_target", "ppo_kl_coef"),
            ("use_bias_correction_kl", "kl_coef"),
            ("ref_model_path", "kl_coef"),
            ("ref_model_sync_steps", "kl_coef"),
            ("offload_reference", "kl_coef"),
            ("entropy_target", "entropy_coef"),
        ):
            if getattr(self, key) and not getattr(self, needed):
                raise ValueError(
                    f"{key} is set and {needed} is 0, so it would do nothing; set {needed} above "
                    f"0, or leave {key} out"
                )
        if self.reference_is_served and (self.kl_estimator == "full" or self.offload_reference):
            server = mask_text(str(self.ref_model_path))
            raise ValueError(
                f"ref_model_path={server} is a server, which gives the log-probs of sampled tokens "
                "only; take an estimator of these such as k3 in the place of "
                "kl_estimator=full, and leave offload_reference out"
            )
        if self.ref_model_path and self.ref_model_sync_steps:
            raise ValueError(
                "ref_model_path names a reference that stays, and ref_model_sync_steps replaces it "
                "by the policy; leave one of them out"
            )
        if self.ref_model_mixup_alpha < 1 and not self.ref_model_sync_steps:
            raise ValueError(
                "ref_model_mixup_alpha is for a reference that moves; set ref_model_sync_steps, or "
                "leave it out"
            )
        if self.use_bias_correction_kl and (not self.use_kl_loss or self.kl_estimator == "full"):
            raise ValueError(
                "use_bias_correction_kl corrects an estimator of sampled tokens in the loss; set "
                "use_kl_loss=true and an estimator such as k3, or leave it out"
            )
        if self.jsd_beta != 1 and self.kl_estimator != "full":
            raise ValueError(
                "jsd_beta chooses the divergence over the vocabulary; set kl_estimator=full, or "
                "leave jsd_beta out"
            )
        if self.ptx_loss == "distillation" and not (
            self.ptx_coef and self.kl_coef and self.kl_estimator == "full"
        ):
            raise ValueError(
                "ptx_loss=distillation measures the divergence from the reference on data.ptx; set "
                "ptx_coef and kl_coef above 0 and kl_estimator=full, or leave ptx_loss out"
            )
        if self.ppo_kl_coef and not self.has_several_updates:
            raise ValueError(
                "ppo_kl_coef holds the policy near the one that sampled, from which the first "
                "update does not differ; set ppo_mini_batch_size, or ppo_epochs above 1"
            )
        if self.kl_level == "sequence" and not (
            self.kl_coef > 0
            and self.use_kl_loss
            and self.kl_estimator != "full"
            and self.loss_agg_mode == "seq-mean-token-mean"
        ):
            raise ValueError(
                "kl_level=sequence is a KL term of each completion; it needs kl_coef above 0, "
                "use_kl_loss=true, an estimator of sampled tokens such as k3, and "
                "loss_agg_mode=seq-mean-token-mean, which counts each completion once"
            )
        if self.adv_estimator == "gdpo":
            for key, is_set in (
                ("use_kl_loss=false", self.kl_coef > 0 and not self.use_kl_loss),
                ("reward_clip_range", self.reward_clip_range is not None),
                ("normalize_rewards", self.normalize_rewards),
            ):
                if is_set:
                    raise ValueError(
                        f"adv_estimator=gdpo normalises each reward function by itself, and {key} "
                        "changes their sum; leave one of them out"
                    )
        if self.kl_estimator == "full" and not self.use_kl_loss:
            raise ValueError(
                "kl_estimator=full is computed in the update, after the rewards; set "
                "use_kl_loss=true, or an estimator of sampled tokens such as k1"
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
        if self.replay is not None and self.dynamic_sampling:
            raise ValueError(
                "dynamic_sampling replaces groups without a signal by new ones, and replay by "
                "earlier ones; leave one of them out"
            )
        if self.replay is not None and self.normalize_rewards:
            raise ValueError(
                "normalize_rewards divides by the deviation of all rewards so far, and replay "
                "would have earlier ones counted again; leave one of them out"
            )
        if self.replay is not None and self.rollout_is == "none":
            raise ValueError(
                "replay learns from completions of earlier policies, and rollout_is=none does not "
                "correct for that; leave rollout_is out"
            )
        if self.filter_key is not None and not self.dynamic_sampling:
            raise ValueError(
                "filter_key tells dynamic sampling which groups to keep, and it is off; set "
                "dynamic_sampling=true, or leave filter_key out"
            )
        if self.reward_clip_range is not None and not (
            self.reward_clip_range[0] < self.reward_clip_range[1]
        ):
            raise ValueError(
                f"reward_clip_range={list(self.reward_clip_range)}: the first must be below the "
                "second"
            )
        if self.filter_low >= self.filter_high:
            raise ValueError(
                f"filter_low={self.filter_low:g} and filter_high={self.filter_high:g}: no group "
                "lies between them; lower the first or raise the second"
            )
        if self.spec is not None:
            self._check_against(self.spec)
        return self

    @property
    def has_several_updates(self) -> bool:
        """Can the ratio to the policy that sampled be other than 1?"""
        return self.ppo_epochs > 1 or self.ppo_mini_batch_size is not None

    @property
    def reference_is_served(self) -> bool:
        """Is the reference behind a server?"""
        return (self.ref_model_path or "").startswith(("http://", "https://"))

    @property
    def spec(self) -> AlgorithmSpec | None:
        """What is known of a built-in algorithm; None for any other."""
        return algorithm_specs().get(self.name)

    def _check_against(self, spec: AlgorithmSpec) -> None:
        for requirement in spec.requires:
            if not requirement.is_met(self):
                raise ValueError(requirement.message)
        for key, readers in algorithm_readers().items():
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default and spec.name not in readers:
                raise ValueError(  # it would be ignored without a word
                    f"{spec.name} does not read {key} (it is {value!r}); leave it out, or choose "
                    f"one of {', '.join(sorted(readers))}"
                )
