"""Advantages and losses: each is one file of ``advantages/`` or ``losses/``.

The other files have what several of them share: inputs, ratios, baselines and estimators of the KL.
torch is loaded when a function first runs, so that a configuration is read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmr1.algorithms.critic import CriticConfig
from mmr1.algorithms.interface import (
    Advantage,
    AdvantageInputs,
    Loss,
    LossInputs,
    UpdateTokens,
    clipped_loss,
    per_completion,
)
from mmr1.part import Kind
from mmr1.section import Interval, Need, OwnPart, Section, Share

AggMode = Literal[
    "seq-mean-token-mean",
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
]
_Clip = Annotated[float, Field(ge=0)]
ClipLow = Annotated[_Clip, Field(description="The ratio is clipped below at 1 - this")]
ClipHigh = Annotated[_Clip, Field(description="The ratio is clipped above at 1 + this")]
ClipDual = Annotated[
    float | None,
    Field(gt=1, description="Bound of the ratio where the advantage is negative, e.g. 3"),
]


class LossConfig(Section):
    """A policy loss.

    ``per_completion``: it has one ratio per completion, not one per token.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.advantage.type", "algorithm.loss.type"),
            lambda c: c.algorithm.advantage.per_token and c.algorithm.loss.per_completion,
            "these advantages are of tokens, and this loss has one ratio per completion; change "
            "one of them",
            ("algorithm=ppo", "algorithm.loss=gspo"),
        ),
        Need(
            ("algorithm.loss.agg_scope",),
            lambda c: c.algorithm.loss.agg_scope == "rollout" and c.mini_batches < 2,
            "the only mini-batch is the whole rollout; set algorithm.ppo_mini_batch_size",
            ("algorithm.loss.agg_scope=rollout",),
            warns=True,
        ),
    )

    per_completion: ClassVar[bool] = False
    agg_scope: Literal["mini-batch", "rollout"] = Field(
        "mini-batch",
        description="Sequences and tokens by which sums of losses are divided; mini-batch: each "
        "mini-batch's (verl, EasyR1), rollout: the mean of the rollout's mini-batches (TRL's dapo "
        "and cispo)",
    )
    if TYPE_CHECKING:
        type: str

    @property
    def aggregation(self) -> AggMode:
        """``agg_mode``; a loss without it counts each completion once."""
        return getattr(self, "agg_mode", "seq-mean-token-mean")

    @property
    def token_share(self) -> float:
        """``top_entropy_quantile``; 1 for a loss that learns from all tokens."""
        return getattr(self, "top_entropy_quantile", 1.0)


class TokenLoss(LossConfig):
    """A loss whose tokens are added up."""

    # The default of TRL (loss_type=dapo), verl and EasyR1, whose GRPO it is too.
    agg_mode: AggMode = Field("token-mean", description="How token losses are added up")


class SelectiveLoss(TokenLoss):
    """A loss that can learn from a share of the tokens."""

    top_entropy_quantile: Share = Field(
        1.0,
        description="Share of a mini-batch's tokens to learn from; those of the highest entropy, "
        "e.g. 0.2 (TRL)",
    )


class OwnLoss(TokenLoss, OwnPart):
    """A loss of your own."""


class AdvantageConfig(Section):
    """The advantage of an algorithm.

    ``compares_group``: it compares the completions of a prompt, so ``rollout.n`` must be 2 or more.
    ``per_token``: the tokens of a completion have advantages of their own.
    ``per_step``: it learns from rewards of steps, and from no other.
    ``per_function``: it compares the values of each reward function by themselves.
    """

    compares_group: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    per_step: ClassVar[bool] = False
    per_function: ClassVar[bool] = False
    if TYPE_CHECKING:
        type: str


class RewardAdvantage(AdvantageConfig):
    """An advantage that reads the completions' rewards."""

    normalize_rewards: bool = Field(
        False,
        description="Rewards less their mean, over their deviation, both of all rewards so far; "
        "reward_clip_range then clips the result",
    )
    reward_clip_range: Interval | None = Field(
        None, description="Rewards are clipped to [low, high] before the advantages (TRL)"
    )


class OwnAdvantage(RewardAdvantage, OwnPart):
    """An advantage of your own."""

    critic: CriticConfig | None = Field(None, description="{}: a critic gives values")


loss = Kind(
    "algorithm.loss",
    "mmr1.algorithms.losses",
    base=TokenLoss,
    own=OwnLoss,
    default="ppo",
    makes="mmr1.algorithms.interface:Loss",
)
advantage = Kind(
    "algorithm.advantage",
    "mmr1.algorithms.advantages",
    base=RewardAdvantage,
    own=OwnAdvantage,
    default="grpo",
    makes="mmr1.algorithms.interface:Advantage",
)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named algorithm: values for keys of the section ``algorithm``.

    Attributes:
        values: By key. A section that is null without a preset is filled where it is opened.
        papers: arXiv numbers; empty: those of its loss, or of its advantage.
        about: When to choose it.
    """

    values: Mapping[str, Any]
    papers: str
    about: str


_PRESETS: dict[str, Preset] = {}


def preset(name: str, about: str, papers: str = "", **values: Any) -> None:
    """Declare a named algorithm, in the file of the part that it is about.

    Args:
        name: Its name, ``algorithm.name``.
        about: When to choose it.
        papers: arXiv numbers; none: those of its loss, or of its advantage.
        values: By key of the section ``algorithm``; a text is a ``type``.
    """
    assert name not in _PRESETS, f"two presets have the name {name}"
    written = {k: {"type": v} if isinstance(v, str) else v for k, v in values.items()}
    _PRESETS[name] = Preset(written, papers, about)


def presets() -> Mapping[str, Preset]:
    """Return the named algorithms of all parts; GRPO is the first."""
    assert advantage.parts
    assert loss.parts
    return dict(sorted(_PRESETS.items(), key=lambda each: (each[0] != "grpo", each[0])))


def several_updates(why: str, *beside: str, warns: bool = False) -> Need:
    """Need several updates per rollout: after the first the policy differs from the sampler."""
    return Need(
        ("algorithm.loss.type", "algorithm.ppo_epochs", "algorithm.ppo_mini_batch_size"),
        lambda c: c.updates < 2,
        f"{why}; raise ppo_epochs, or set ppo_mini_batch_size",
        ("algorithm.ppo_epochs=1", *beside),
        warns,
    )


def kl_elsewhere(why: str, *beside: str) -> Need:
    """Need that no KL penalty is in the reward."""
    return Need(
        ("algorithm.advantage.type", "algorithm.kl.type"),
        lambda c: getattr(c.algorithm.kl, "type", None) == "reward",
        f"{why}; set algorithm.kl.type=loss",
        ("algorithm.kl.type=reward", "algorithm.kl.coef=1", *beside),
    )


__all__ = [
    "Advantage",
    "AdvantageInputs",
    "Loss",
    "LossInputs",
    "UpdateTokens",
    "advantage",
    "clipped_loss",
    "loss",
    "per_completion",
    "preset",
    "presets",
]
