"""The ``algorithm`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.algorithms import AdvantageConfig, LossConfig, advantage, loss
from mmr1.algorithms.advantages.distillation import (
    DistillationAdvantage,
    ServedModel,
    Teacher,
)
from mmr1.algorithms.critic import CriticConfig
from mmr1.config.kl import Kl, MovingReference, Reference
from mmr1.config.presets import PARTS, PRESETS, with_preset
from mmr1.registry import suggest
from mmr1.section import Coefficient, Interval, Need, Positive, Section, shapes

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


def _bound_without_weights(c: Any) -> bool:
    weights = c.algorithm.importance_sampling
    if weights is None or c.resources.auto or c.resolved_rollout_is != "none":
        return False
    return bool(weights.sets("threshold"))


def _group_of_one(c: Any) -> bool:
    compares = c.algorithm.advantage.compares_group or c.algorithm.filter_groups is not None
    return c.rollout.n < 2 and compares


def _keeps_completions(c: Any) -> bool:
    """True if checkpoints hold completions that a step is still to learn from."""
    return bool(c.algorithm.learns_from_earlier or c.rollout.streams)


def _reads_clean_view(c: Any) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "clean"


def _routes(c: Any) -> bool:
    return c.algorithm.compares_experts or c.algorithm.router_aux_loss_coef is not None


def _no_divergence(c: Any) -> bool:
    ptx = c.algorithm.ptx
    return (
        ptx is not None
        and ptx.loss == "distillation"
        and getattr(c.algorithm.kl, "type", None) != "full"
    )


def _no_surplus(c: Any) -> bool:
    resamples = c.algorithm.resamples
    return resamples is not None and resamples.keep_surplus and resamples.gen_batch_size is None


class PtxConfig(Section):
    """A supervised loss in every update."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.ptx.batch_size", "algorithm.ppo_mini_batch_size"),
            lambda c: c.algorithm.ptx is not None and c.algorithm.ptx.batch_size < c.mini_batches,
            "each mini-batch of a rollout takes its share of the demonstrations; raise one of them",
            (
                "algorithm.ptx.data=x",
                "algorithm.ptx.batch_size=1",
                "algorithm.ppo_mini_batch_size=8",
            ),
        ),
        Need(
            ("algorithm.ptx.loss", "algorithm.kl.type"),
            _no_divergence,
            "it measures at the demonstrations what kl.type=full measures; set that, or leave "
            "ptx.loss out",
            ("algorithm.ptx.data=x", "algorithm.ptx.loss=distillation"),
        ),
    )

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

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.filter_groups.keep_surplus", "algorithm.filter_groups.gen_batch_size"),
            _no_surplus,
            "as many prompts are drawn as groups are missing, so there is no surplus; set "
            "gen_batch_size, e.g. to data.train_batch_size",
            ("algorithm=dapo", "algorithm.filter_groups.keep_surplus=true"),
        ),
    )

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

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.filter_groups.type", "algorithm.advantage.normalize_rewards"),
            lambda c: c.algorithm.replay is not None and c.algorithm.normalize_rewards,
            "earlier rewards would be counted again; leave one of them out",
            ("algorithm.filter_groups=replay", "algorithm.advantage.normalize_rewards=true"),
        ),
    )

    type: Literal["replay"] = "replay"
    capacity: Positive = Field(64, description="Number of the last groups with a signal to keep")


FilterGroups = Annotated[ResampleConfig | ReplayConfig, Field(discriminator="type")]


class ImportanceSamplingConfig(Section):
    """Multiplies losses by the trainer's probability over the engine's."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            (
                "algorithm.rollout_correction.importance_sampling.threshold",
                "algorithm.rollout_correction.importance_sampling.level",
                "rollout.engine.type",
            ),
            _bound_without_weights,
            "this engine samples from the very weights that are updated, and level=auto has no "
            "weights then; set level to token or sequence, or leave threshold out",
            ("rollout.engine=hf", "algorithm.rollout_correction.importance_sampling.threshold=3"),
        ),
    )

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


def _clips_nothing(c: Any) -> bool:
    """True for a clip that the user set, not the preset, where no update can differ."""
    loss = c.algorithm.loss
    if c.updates > 1:
        return False
    bounds = {key: value for key, value in loss if key in ("clip_ratio_low", "clip_ratio_high")}
    return any(value != _preset_value(c, loss, key) for key, value in bounds.items())


def _preset_value(c: Any, loss: LossConfig, key: str) -> object:
    preset = PRESETS[c.algorithm.name]["loss"]
    field = type(loss).model_fields[key]
    same = preset["type"] == type(loss).model_fields["type"].default
    return preset.get(key, field.default) if same else field.default


class AlgorithmConfig(Section):
    """The advantage, the loss and their terms. ``name`` is a preset, which fills the first."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.loss.clip_ratio_low", "algorithm.loss.clip_ratio_high"),
            _clips_nothing,
            "with one update per rollout every ratio is 1, and nothing is clipped; set "
            "algorithm.ppo_mini_batch_size, or ppo_epochs above 1",
            ("algorithm.loss.clip_ratio_high=0.3",),
            warns=True,
        ),
        Need(
            ("algorithm.ppo_mini_batch_size", "data.train_batch_size"),
            lambda c: bool(c.data.train_batch_size % (c.algorithm.ppo_mini_batch_size or 1)),
            "the first does not divide the second, and mini-batches have equally many prompts; "
            "change one of them",
            ("algorithm.ppo_mini_batch_size=5",),
        ),
        Need(
            ("rollout.n", "algorithm.advantage.type"),
            _group_of_one,
            "a group of one has no baseline and no signal; set rollout.n to 2 or more",
            ("rollout.n=1",),
        ),
        Need(
            ("algorithm.filter_groups.type", "algorithm.rollout_correction.importance_sampling"),
            lambda c: c.algorithm.learns_from_earlier and c.algorithm.importance_sampling is None,
            "completions of earlier policies need the correction; leave importance_sampling out",
            (
                "algorithm.filter_groups=replay",
                "algorithm.rollout_correction.importance_sampling=null",
            ),
        ),
        Need(
            ("algorithm.router_replay", "environment"),
            lambda c: c.algorithm.compares_experts and c.environment is not None,
            "the turns of a conversation are separate requests, and the experts of what stands "
            "between them are not known; leave one of them out",
            ("algorithm.router_replay=R3", "environment.tools=[zoom]"),
        ),
        Need(
            (
                "algorithm.router_replay",
                "algorithm.filter_groups.type",
                "rollout.queue.at_new_weights",
            ),
            lambda c: c.algorithm.compares_experts and _keeps_completions(c),
            "checkpoints would keep the experts of every token, megabytes a completion; leave "
            "replay, keep_surplus and at_new_weights out",
            ("algorithm.router_replay=R3", "algorithm.filter_groups=replay"),
        ),
        Need(
            ("algorithm.router_replay", "rollout.views.loss"),
            lambda c: c.algorithm.compares_experts and _reads_clean_view(c),
            "the engine chose experts for pictures that the update does not see; set "
            "rollout.views.loss=own, or leave router_replay out",
            (
                "algorithm.router_replay=compare",
                "rollout.views.view=noise",
                "rollout.views.strength=0.5",
            ),
        ),
        Need(
            ("algorithm.router_replay", "resources.context_parallel_size"),
            lambda c: _routes(c) and c.resources.context_parallel_size > 1,
            "routers are followed where a rank has whole sequences; leave router_replay and "
            "router_aux_loss_coef out, or set context_parallel_size=1",
            (
                "algorithm.router_replay=R3",
                "resources.context_parallel_size=2",
                "resources.ranks=2",
                "rollout.engine=vllm",
            ),
        ),
    )

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
        "chose other experts (rollout/frac_router_mismatch); R3: log it, and compute log-probs "
        "and update with the engine's choice (arXiv 2510.11370; verl)",
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
    def reference(self) -> Reference | Teacher | None:
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
    def moving_reference(self) -> MovingReference | None:
        """The reference that the policy is copied to now and then; None for any other."""
        reference = self.reference
        return reference if isinstance(reference, MovingReference) else None

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
