"""``algorithm.advantage``: how rewards become advantages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mmr1.section import (
    Coefficient,
    Count,
    CustomPart,
    Fraction,
    Interval,
    Positive,
    Section,
    Share,
    Url,
)


class CriticConfig(Section):
    """The critic: a second vision-language model with a value head.

    Betas, weight decay and gradient norm of its AdamW are those of the ``optimizer`` section.
    """

    path: str | None = Field(
        None,
        description="Initial weights: a model, or a reward model; null: model.path",
    )
    lr: Coefficient = Field(
        1e-5, description="Learning rate, constant after optimizer.scheduler.warmup_steps"
    )
    cliprange_value: Coefficient | None = Field(
        0.2, description="Largest change of a value per rollout; null: no clip"
    )
    ppo_epochs: Positive | None = Field(
        None, description="Its passes over a rollout; null: algorithm.ppo_epochs"
    )
    bootstrap_truncated: bool = Field(
        False,
        description="A completion that the limit cut off continues with the critic's value; else "
        "its return ends with it",
    )
    warmup_steps: Count = Field(
        0, description="First steps, in which the critic is updated and the policy is not"
    )


class AdvantageConfig(Section):
    """The advantage of an algorithm.

    ``compares_group``: it compares the completions of a prompt, so ``rollout.n`` must be 2 or more.
    ``of_tokens``: the tokens of a completion have advantages of their own.
    """

    compares_group: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = False


class _OfRewards(AdvantageConfig):
    normalize_rewards: bool = Field(
        False,
        description="Rewards less their mean, over their deviation, both of all rewards so far; "
        "reward_clip_range then clips the result",
    )
    reward_clip_range: Interval | None = Field(
        None, description="Rewards are clipped to [low, high] before the advantages (TRL)"
    )


class GrpoAdvantage(_OfRewards):
    """(r − mean) / deviation."""

    compares_group: ClassVar[bool] = True
    type: Literal["grpo"] = "grpo"
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "group", description="Whose deviation divides r − group mean (TRL)"
    )
    epsilon: Coefficient = Field(
        1e-6, description="Added to the deviation; TRL, R1-V and their forks have 1e-4"
    )


class RlooAdvantage(_OfRewards):
    """r − mean of the other n − 1."""

    compares_group: ClassVar[bool] = True
    type: Literal["rloo"] = "rloo"


class PassAtKAdvantage(_OfRewards):
    """Best less second best."""

    compares_group: ClassVar[bool] = True
    type: Literal["pass_at_k"] = "pass_at_k"


class OptimalBaselineAdvantage(_OfRewards):
    """r − the group's mean weighted by length (OPO)."""

    compares_group: ClassVar[bool] = True
    type: Literal["optimal_baseline"] = "optimal_baseline"


class GpgAdvantage(_OfRewards):
    """α (r − group mean), scaled up for groups without a signal."""

    compares_group: ClassVar[bool] = True
    type: Literal["gpg"] = "gpg"


class GdpoAdvantage(AdvantageConfig):
    """Each reward function normalised separately."""

    compares_group: ClassVar[bool] = True
    type: Literal["gdpo"] = "gdpo"


class ReinforceAdvantage(_OfRewards):
    """r − a baseline."""

    type: Literal["reinforce"] = "reinforce"
    baseline: Literal["moving_average", "mean", "batch_mean"] = Field(
        "moving_average",
        description="Mean of rewards; moving_average: over batches, with momentum 0.9, mean: of "
        "all rewards so far, batch_mean: of the batch's own",
    )
    gamma: Share = Field(1.0, description="Discount per token")


class ReinforcePpAdvantage(_OfRewards):
    """r − the KL penalties from t on, normalised over the batch (REINFORCE++)."""

    of_tokens: ClassVar[bool] = True
    type: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: Share = Field(1.0, description="Discount per token")


class ReinforcePpBaselineAdvantage(_OfRewards):
    """r − group mean, normalised over the batch (REINFORCE++-baseline)."""

    compares_group: ClassVar[bool] = True
    type: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    kl_to_go: bool = Field(
        False,
        description="Subtract a token's KL penalties, its own and those to come, after the group "
        "mean (OpenRLHF, LMM-R1); false: their sum before it (verl). For algorithm.kl.type=reward",
    )


class RemaxAdvantage(_OfRewards):
    """r − reward of the greedy completion."""

    type: Literal["remax"] = "remax"


class GaeAdvantage(_OfRewards):
    """PPO's, with a critic: GAE(γ, λ), normalised over the batch."""

    of_tokens: ClassVar[bool] = True
    type: Literal["gae"] = "gae"
    gamma: Share = Field(1.0, description="Discount per token")
    lam: Fraction = Field(1.0, description="λ of GAE; 1: the return less the value")
    critic: CriticConfig = CriticConfig()


class ProcessAdvantage(AdvantageConfig):
    """Sum of the normalised step rewards from t on."""

    compares_group: ClassVar[bool] = True
    of_tokens: ClassVar[bool] = True
    type: Literal["process"] = "process"
    step_rewards: str = Field(
        description="What rewards the steps of a completion: file.py:function, or a reward "
        "model of steps"
    )


class GigpoAdvantage(AdvantageConfig):
    """GRPO's of the whole conversation, and of each turn beside those of the same state (GiGPO)."""

    compares_group: ClassVar[bool] = True
    of_tokens: ClassVar[bool] = True
    type: Literal["gigpo"] = "gigpo"
    step_advantage_w: Coefficient = Field(1.0, description="Weight of the turn's advantage, ω")
    gamma: Share = Field(0.95, description="Discount per turn")
    group_by: Literal["state", "turn"] = Field(
        "state",
        description="Which turns of a group are compared: those that answer the same observation, "
        "or those of the same number",
    )
    scale_rewards: Literal["group", "none"] = Field(
        "group", description="Divide by the deviation of those compared; none: by 1"
    )
    epsilon: Coefficient = Field(1e-6, description="Added to the deviation")


class ServedModel(Section):
    """A model behind a vLLM server."""

    type: Literal["server"] = "server"
    url: Url = Field(description="Its address; it gives log-probs of sampled tokens only")


class TeacherModel(Section):
    """A teacher that this run loads."""

    type: Literal["model"] = "model"
    path: str = Field(description="Model directory, or name on the Hub")
    offload: bool = Field(
        False, description="Keep it in main memory except while it computes log-probs"
    )


Teacher = Annotated[TeacherModel | ServedModel, Field(discriminator="type")]


class DistillationAdvantage(_OfRewards):
    """coef (log p_teacher − log p) of each token, and GRPO's advantage of the rewards."""

    type: Literal["distillation"] = "distillation"
    coef: Coefficient = Field(1.0, description="Coefficient of log p_teacher − log p")
    teacher: Teacher = Field(description="The model whose log-probs are learned")


class CustomAdvantage(_OfRewards, CustomPart):
    """An advantage of your own."""

    type: Literal["custom"] = "custom"
    critic: CriticConfig | None = Field(None, description="{}: a critic gives values")


Advantage = Annotated[
    GrpoAdvantage
    | RlooAdvantage
    | PassAtKAdvantage
    | OptimalBaselineAdvantage
    | GpgAdvantage
    | GdpoAdvantage
    | ReinforceAdvantage
    | ReinforcePpAdvantage
    | ReinforcePpBaselineAdvantage
    | RemaxAdvantage
    | GaeAdvantage
    | ProcessAdvantage
    | DistillationAdvantage
    | GigpoAdvantage
    | CustomAdvantage,
    Field(discriminator="type"),
]
