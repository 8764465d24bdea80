"""``algorithm.loss``: the policy loss."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mmr1.section import Coefficient, CustomPart, Section, Share

AggMode = Literal[
    "seq-mean-token-mean",
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
]
Clip = Annotated[float, Field(ge=0)]
LOW = "The ratio is clipped below at 1 - this"
HIGH = "The ratio is clipped above at 1 + this"
AGGREGATION = "How token losses are added up"


class LossConfig(Section):
    """A policy loss. ``of_completions``: one ratio per completion, not one per token."""

    of_completions: ClassVar[bool] = False
    agg_scope: Literal["mini-batch", "rollout"] = Field(
        "mini-batch",
        description="Sequences and tokens by which sums of losses are divided; mini-batch: each "
        "mini-batch's (verl, EasyR1), rollout: the mean of the rollout's mini-batches (TRL's dapo "
        "and cispo)",
    )

    @property
    def aggregation(self) -> AggMode:
        """``agg_mode``; a loss without it counts each completion once."""
        return getattr(self, "agg_mode", "seq-mean-token-mean")

    @property
    def token_share(self) -> float:
        """``top_entropy_quantile``; 1 for a loss that learns from all tokens."""
        return getattr(self, "top_entropy_quantile", 1.0)


class _OfTokens(LossConfig):
    # The default of TRL (loss_type=dapo), verl and EasyR1, whose GRPO it is too.
    agg_mode: AggMode = Field("token-mean", description=AGGREGATION)


class _Selecting(_OfTokens):
    top_entropy_quantile: Share = Field(
        1.0,
        description="Share of a mini-batch's tokens to learn from; those of the highest entropy, "
        "e.g. 0.2 (TRL)",
    )


class _DualClip(LossConfig):
    clip_ratio_dual: float | None = Field(
        None, gt=1, description="Bound of the ratio where the advantage is negative, e.g. 3"
    )


class PpoLoss(_Selecting, _DualClip):
    """PPO's: the clipped ratio of each token."""

    type: Literal["ppo"] = "ppo"
    clip_ratio_low: Clip = Field(0.2, description=LOW)
    clip_ratio_high: Clip = Field(0.2, description=HIGH)


class PpoKlLoss(_Selecting):
    """PPO's other form: a KL penalty in the place of the clip."""

    type: Literal["ppo_kl"] = "ppo_kl"
    coef: Coefficient = Field(
        description="Coefficient of the KL to the policy before the rollout's first update"
    )
    target: Coefficient | None = Field(
        None, description="Halve or double coef to reach this KL per token; null: it is fixed"
    )


class GspoLoss(_OfTokens, _DualClip):
    """GSPO's: the geometric mean of a completion's token ratios, clipped."""

    of_completions: ClassVar[bool] = True
    type: Literal["gspo"] = "gspo"
    agg_mode: AggMode = Field("seq-mean-token-mean", description=AGGREGATION)
    clip_ratio_low: Clip = Field(3e-4, description=LOW)
    clip_ratio_high: Clip = Field(4e-4, description=HIGH)


class SequencePpoLoss(_DualClip):
    """The R1 paper's: the ratio of the whole completion, clipped; its KL is of completions too."""

    of_completions: ClassVar[bool] = True
    type: Literal["sequence_ppo"] = "sequence_ppo"
    clip_ratio_low: Clip = Field(0.2, description=LOW)
    clip_ratio_high: Clip = Field(0.2, description=HIGH)


class CispoLoss(_Selecting):
    """CISPO's: clips the importance weight, not the update."""

    type: Literal["cispo"] = "cispo"
    clip_ratio_low: Clip = Field(1.0, description=LOW)
    clip_ratio_high: Clip = Field(4.0, description=HIGH)


class SapoLoss(_Selecting):
    """SAPO's: a smooth gate around ratio 1 in the place of the clip."""

    type: Literal["sapo"] = "sapo"
    agg_mode: AggMode = Field("seq-mean-token-mean", description=AGGREGATION)
    tau_pos: Coefficient = Field(1.0, description="Gate's temperature for positive advantages")
    tau_neg: Coefficient = Field(1.05, description="Gate's temperature for negative advantages")


class ClipCovLoss(_OfTokens):
    """Clip-Cov's: leaves out a few tokens whose log-prob and advantage covary."""

    type: Literal["clip_cov"] = "clip_cov"
    clip_ratio_low: Clip = Field(1.0, description=LOW)
    clip_ratio_high: Clip = Field(1.0, description=HIGH)
    ratio: Share = Field(
        2e-4, description="Share of the tokens, of covariance 1 to 5, taken out of the loss"
    )


class KlCovLoss(_OfTokens):
    """KL-Cov's: holds the tokens of the highest covariance near the policy before the update."""

    type: Literal["kl_cov"] = "kl_cov"
    ratio: Share = Field(2e-3, description="Share of the tokens that are held")
    coef: Coefficient = Field(1.0, description="Coefficient of their KL (verl: ppo_kl_coef)")


class ReinforceLoss(_Selecting):
    """The plain policy gradient, −A log p."""

    type: Literal["reinforce"] = "reinforce"
    importance: Literal["none", "token", "per_decision", "sequence"] = Field(
        "none", description="Importance weights, for several updates per rollout"
    )


class CustomLoss(_OfTokens, CustomPart):
    """A loss of your own."""

    type: Literal["custom"] = "custom"


Loss = Annotated[
    PpoLoss
    | PpoKlLoss
    | GspoLoss
    | SequencePpoLoss
    | CispoLoss
    | SapoLoss
    | ClipCovLoss
    | KlCovLoss
    | ReinforceLoss
    | CustomLoss,
    Field(discriminator="type"),
]
