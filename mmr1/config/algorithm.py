"""The ``algorithm`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.algorithms import AdvantageConfig, LossConfig, advantage, loss
from mmr1.algorithms.advantages.distillation import (
    DistillationAdvantage,
    ServedModel,
    Teacher,
)
from mmr1.algorithms.critic import CriticConfig
from mmr1.config.kl import Kl, MovingReference, NearMovingReference, NearReference, Reference
from mmr1.config.presets import PARTS, PRESETS, with_preset
from mmr1.registry import suggest
from mmr1.section import Coefficient, Interval, Positive, Section, shapes

if TYPE_CHECKING:
    Advantage = AdvantageConfig
    Loss = LossConfig
else:
    Advantage = advantage.union()
    Loss = loss.union()


class EntropyConfig(Section):
    """An entropy bonus per token."""

    coef: Coefficient = Field(description="Coefficient, above 0; algorithm.entropy=null is off")
    target: Coefficient | None = Field(
        None, description="Adapt coef to this entropy per token; null: it is fixed"
    )


class PerceptionConfig(Section):
    """PAPO's implicit perception loss: what is sampled must depend on the picture."""

    coef: Coefficient = Field(
        0.01, description="Coefficient, above 0; algorithm.perception=null is off"
    )
    mask_ratio: float = Field(
        0.6, gt=0, le=1, description="Share of the pictures' 14 x 14 patches that are made black"
    )


class PtxConfig(Section):
    """A supervised loss in every update."""

    data: str = Field(description="Demonstrations")
    coef: Coefficient = Field(1.0, description="Coefficient of the loss")
    batch_size: Positive = Field(32, description="Demonstrations per step")
    loss: Literal["nll", "distillation"] = Field(
        "nll",
        description="nll: the demonstrations' negative log-likelihood; distillation: the "
        "divergence from the reference at their tokens, as algorithm.kl.type=full measures it",
    )


class RangeConfig(Section):
    """Keeps groups by the mean of a reward."""

    metric: str = Field(
        description="Reward function; FUNCTION/NAME, another number that it returns (as "
        "rule/accuracy_rewards of MM-Eureka's file); or overall: the whole reward"
    )
    between: Interval = Field(
        (0.0, 1.0), description="Groups are kept whose mean lies between these"
    )


class ResampleConfig(Section):
    """DAPO's dynamic sampling: replaces groups without a signal by new ones."""

    type: Literal["resample"] = "resample"
    range: RangeConfig | None = Field(
        None, description="Which groups are kept; null: those whose rewards differ"
    )
    gen_batch_size: Positive | None = Field(
        None,
        description="Prompts per draw (verl: data.gen_batch_size; EasyR1: "
        "mini_rollout_batch_size); null: as many as groups are missing",
    )
    keep_surplus: bool = Field(
        False,
        description="What a step has beyond its groups is learned from in the next step (as in "
        "MM-Eureka); false: it is dropped, as in DAPO",
    )
    max_num_gen_batches: Positive = Field(
        10,
        description="Most draws of prompts per step; if all groups then have equal rewards, the "
        "run ends",
    )


class ReplayConfig(Section):
    """Replaces groups without a signal by earlier ones that had one (VL-Rethinker)."""

    type: Literal["replay"] = "replay"
    capacity: Positive = Field(64, description="Number of the last groups with a signal to keep")


FilterGroups = Annotated[ResampleConfig | ReplayConfig, Field(discriminator="type")]


class ImportanceSamplingConfig(Section):
    """Multiplies losses by the trainer's probability over the engine's."""

    level: Literal["auto", "token", "sequence"] = Field(
        "auto",
        description="auto: of tokens, but none where engine hf samples from the very weights that "
        "are then updated",
    )
    threshold: Coefficient = Field(2.0, description="Largest such weight")


class RejectionSamplingConfig(Section):
    """Masks tokens whose probability the engine and the trainer see too differently."""

    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="The token's ratio; or the product, or the geometric mean, over the "
        "completion, which is then masked as a whole (verl)",
    )
    threshold: float = Field(gt=1, description="Mask above this, and below its inverse")


class RolloutCorrectionConfig(Section):
    """Corrections for an engine whose probabilities differ from the trainer's."""

    importance_sampling: ImportanceSamplingConfig | None = Field(
        ImportanceSamplingConfig(), description="Weights of the losses; null: none"
    )
    rejection_sampling: RejectionSamplingConfig | None = Field(
        None, description="Masks; null: none"
    )
    off_policy_mask_threshold: Coefficient | None = Field(
        None,
        description="Mask tokens of negative advantage in off-policy completions; those whose mean "
        "log-ratio of engine to policy is above this, in nats, e.g. 0.5 (TRL; DeepSeek-V3.2)",
    )


class AlgorithmConfig(Section):
    """The advantage, the loss and their terms. ``name`` is a preset, which fills the first."""

    name: str = Field(
        "grpo", description="Preset of docs/algorithms.md: fills advantage, loss and filter_groups"
    )
    advantage: Advantage = Field(
        default_factory=advantage.first, description="How rewards become advantages"
    )
    loss: Loss = Field(default_factory=loss.first, description="The policy loss")
    kl: Kl | None = Field(
        None, description="KL to a reference policy; null: no reference is loaded"
    )
    entropy: EntropyConfig | None = Field(None, description="Entropy bonus; null: none")
    perception: PerceptionConfig | None = Field(
        None,
        description="Reward for log-probs that a masked picture changes (PAPO); null: none",
    )
    ptx: PtxConfig | None = Field(None, description="Supervised loss beside it; null: none")
    filter_groups: FilterGroups | None = Field(
        None, description="What takes the place of groups without a signal; null: nothing"
    )
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    router_replay: Literal["disabled", "compare", "R3"] = Field(
        "disabled",
        description="Mixtures of experts. compare: log the share of tokens for which the engine "
        "chose other experts (rollout/router_gap); R3: log it, and compute log-probs and update "
        "with the engine's choice (arXiv 2510.11370; verl)",
    )
    router_aux_loss_coef: Coefficient | None = Field(
        None,
        description="Coefficient of transformers' load-balancing loss of mixtures of experts, over "
        "the tokens of the update, each token of a shared prompt once; null: none",
    )
    ppo_epochs: Positive = Field(1, description="Passes over a rollout (TRL: num_iterations)")
    ppo_mini_batch_size: Positive | None = Field(
        None,
        description="Prompts per optimizer step; must divide data.train_batch_size (EasyR1: "
        "worker.actor.global_batch_size). null: all of the rollout",
    )
    mask_truncated_completions: bool = Field(
        False, description="Mask truncated completions in the loss"
    )

    @classmethod
    def expanded(cls, short: Any) -> Any:
        """Write a string out as the name."""
        return {"name": short} if isinstance(short, str) else short

    @classmethod
    def below(cls, values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the parts that a preset in the layer above fills."""
        gone = PARTS if "name" in above else ()
        return {key: value for key, value in values.items() if key not in gone}

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        known = shapes(cls)
        parts = {key: known[key].expanded(values[key]) for key in known if key in values}
        return with_preset({**values, **parts})

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(
                f"there is no such preset{suggest(name, list(PRESETS))}; presets are "
                f"{', '.join(PRESETS)}. An advantage or a loss of your own is "
                "algorithm.advantage=file.py:function, or algorithm.loss"
            )
        return name

    @property
    def has_several_updates(self) -> bool:
        """True if the ratio to the policy that sampled can differ from 1."""
        return self.ppo_epochs > 1 or self.ppo_mini_batch_size is not None

    @property
    def compares_experts(self) -> bool:
        """True if the engine returns the experts that its routers chose."""
        return self.router_replay != "disabled"

    @property
    def critic(self) -> CriticConfig | None:
        """The critic of the advantage; None for an advantage without one."""
        return getattr(self.advantage, "critic", None)

    @property
    def reference(self) -> Reference | NearReference | Teacher | None:
        """The model besides the policy: the KL's reference, or the teacher; None for neither."""
        if isinstance(self.advantage, DistillationAdvantage):
            return self.advantage.teacher
        return None if self.kl is None else self.kl.reference

    @property
    def reference_key(self) -> str:
        """The key that names the model besides the policy."""
        teaches = isinstance(self.advantage, DistillationAdvantage)
        return "algorithm.advantage.teacher" if teaches else "algorithm.kl.reference"

    @property
    def moving_reference(self) -> MovingReference | NearMovingReference | None:
        """The reference that the policy is copied to now and then; None for any other."""
        reference = self.reference
        return reference if isinstance(reference, MovingReference | NearMovingReference) else None

    @property
    def reference_is_served(self) -> bool:
        """True if the reference, or the teacher, is behind a server."""
        return isinstance(self.reference, ServedModel)

    @property
    def resamples(self) -> ResampleConfig | None:
        """Dynamic sampling; None where it is off."""
        return self.filter_groups if isinstance(self.filter_groups, ResampleConfig) else None

    @property
    def replay(self) -> ReplayConfig | None:
        """The replay; None where it is off."""
        return self.filter_groups if isinstance(self.filter_groups, ReplayConfig) else None

    @property
    def learns_from_earlier(self) -> bool:
        """True if steps learn from completions that an earlier step sampled."""
        resamples = self.resamples
        return self.replay is not None or (resamples is not None and resamples.keep_surplus)

    @property
    def importance_sampling(self) -> ImportanceSamplingConfig | None:
        """Weights against the engine's probabilities; None where they are off."""
        return self.rollout_correction.importance_sampling

    @property
    def normalize_rewards(self) -> bool:
        """True if rewards are normalised by all rewards so far; some advantages read none."""
        return getattr(self.advantage, "normalize_rewards", False)

    @property
    def reward_clip_range(self) -> tuple[float, float] | None:
        """The bounds of the rewards; None where they are not clipped."""
        return getattr(self.advantage, "reward_clip_range", None)
