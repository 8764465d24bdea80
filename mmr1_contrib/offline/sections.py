"""Sections of the offline commands: ``dpo``, ``rm`` and ``iterative_grpo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mmr1.part import union_of
from mmr1.registry import Registry
from mmr1.section import Coefficient, OwnPart, Positive, Section

BETA = (
    "β of the loss; with a reference, larger keeps the policy closer to it. IPO's τ, ORPO's λ. "
    "SimPO's paper uses 2 and more"
)


class PreferenceLossConfig(Section):
    """A preference loss.

    ``needs_reference``: it compares the policy with the model at the start. ``paired``: it learns
    from pairs; otherwise from single answers, wanted or not.
    """

    needs_reference: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    if TYPE_CHECKING:
        type: str
    beta: Coefficient = Field(0.1, description=BETA)

    @property
    def nll_share(self) -> float:
        """``nll_coef``; 0 for a loss without it."""
        return getattr(self, "nll_coef", 0.0)


class _WithNll(PreferenceLossConfig):
    nll_coef: float = Field(
        0.0, ge=0, description="Coefficient of the chosen answer's mean negative log-likelihood"
    )


class _Smoothed(_WithNll):
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Share of pairs whose label is assumed to be wrong"
    )


class SigmoidLoss(_Smoothed):
    """DPO's; with label_smoothing conservative DPO."""

    type: Literal["sigmoid"] = "sigmoid"


class SigmoidNormLoss(_WithNll):
    """DPO's, of log-probs per token."""

    type: Literal["sigmoid_norm"] = "sigmoid_norm"


class IpoLoss(_WithNll):
    """IPO's."""

    type: Literal["ipo"] = "ipo"


class RobustLoss(_Smoothed):
    """Robust DPO's."""

    type: Literal["robust"] = "robust"


class SimpoLoss(_WithNll):
    """SimPO's, without a reference."""

    needs_reference: ClassVar[bool] = False
    type: Literal["simpo"] = "simpo"
    gamma: float = Field(0.5, ge=0, description="Target reward margin γ")


class OrpoLoss(PreferenceLossConfig):
    """ORPO's, without a reference."""

    needs_reference: ClassVar[bool] = False
    type: Literal["orpo"] = "orpo"


class KtoLoss(PreferenceLossConfig):
    """KTO's, of single answers."""

    paired: ClassVar[bool] = False
    type: Literal["kto"] = "kto"
    desirable_weight: float | None = Field(
        None,
        ge=0,
        description="λ_D, of wanted answers. null: 1; in rounds, where neither weight is set, the "
        "more frequent kind weighs as much as the other",
    )
    undesirable_weight: float | None = Field(
        None, ge=0, description="λ_U, of unwanted answers. null: as desirable_weight"
    )


class OwnPreferenceLoss(_WithNll, OwnPart):
    """A loss of your own: of pairs, with a reference."""


PREFERENCE_LOSSES = Registry("preference loss", {}, group="mmr1.preference_losses")
_LOSSES = (SigmoidLoss, SigmoidNormLoss, IpoLoss, RobustLoss, SimpoLoss, OrpoLoss, KtoLoss)
if TYPE_CHECKING:
    PreferenceLoss = PreferenceLossConfig
else:
    _by_type = {loss.model_fields["type"].default: loss for loss in _LOSSES}
    PreferenceLoss = union_of(_by_type, OwnPreferenceLoss, PREFERENCE_LOSSES)


class RoundsConfig(Section):
    """Rounds of sampling, scoring and training."""

    count: Positive = Field(description="Number of rounds")
    preferred_by: Literal["accuracy", "reward"] = Field(
        "accuracy",
        description="Prefer right completions to wrong ones, or high rewards to low ones. KTO: "
        "rewards above the mean of the prompt's completions",
    )
    prompts: Positive = Field(128, description="Prompts per round; each gets rollout.n completions")
    pairs_per_prompt: Positive = Field(
        4, description="Maximum number of pairs per prompt in a round; KTO uses all completions"
    )


class DpoConfig(Section):
    """Learning from preferences, offline or in rounds (``mmr1 dpo``)."""

    loss: PreferenceLoss = Field(default_factory=SigmoidLoss, description="The preference loss")
    rounds: RoundsConfig | None = Field(
        None, description="Sample, score and train in rounds; null: learn from data.train"
    )

    @property
    def balances_labels(self) -> bool:
        """True if KTO in rounds weighs wanted and unwanted completions by their numbers."""
        if not isinstance(self.loss, KtoLoss):
            return False
        return self.loss.desirable_weight is None and self.loss.undesirable_weight is None


class RewardModelConfig(Section):
    """Training of a reward model (``mmr1 rm``)."""


class OutcomeConfig(RewardModelConfig):
    """A reward model of whole answers, from pairs and rankings."""

    type: Literal["outcome"] = "outcome"


class ProcessConfig(RewardModelConfig):
    """A reward model of steps, from their labels."""

    type: Literal["process"] = "process"
    step_separator: str = Field(
        "\n\n", min_length=1, description="What stands between two steps of an answer"
    )
    hard_labels_above: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="A step is right if its label is above this, else wrong; 0 for VisualPRM's and "
        "Math-Shepherd's hard labels, null: labels are learned as they are",
    )


RewardModel = Annotated[
    OutcomeConfig | ProcessConfig,
    Field(discriminator="type", description="Training of a reward model (mmr1 rm)"),
]


class IterativeGrpoConfig(Section):
    """Iterative GRPO with a reward model that learns too (``mmr1 iterative-grpo``)."""

    rounds: Positive = Field(2, description="Rounds of trainer.max_steps steps of the policy")
    rm_steps: Positive = Field(100, description="Steps of the reward model between two rounds")
    rm_lr: Coefficient = Field(1e-4, description="Its learning rate")
    history: str | None = Field(
        None, description="Rankings or pairs that it was trained on before the first round"
    )
    ranked_by: str | None = Field(
        None,
        description="Reward function that ranks the completions; null: eval.accuracy_function",
    )
