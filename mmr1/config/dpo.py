"""The ``dpo`` section, and what is known of each preference loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.config.section import Positive, Section
from mmr1.registry import Registry


@dataclass(frozen=True, slots=True)
class PreferenceLossSpec:
    """One built-in preference loss.

    Attributes:
        target: The function, as ``module:name``.
        reads: Those keys of the section that only some losses read and this one does.
        needs_reference: It compares the policy with the model at the start.
        paired: It learns from pairs; otherwise from single answers, wanted or not.
    """

    target: str
    reads: frozenset[str] = frozenset()
    needs_reference: bool = True
    paired: bool = True


_LOSSES = "mmr1.trainer.offline.preference_losses"

PREFERENCE_LOSSES: Mapping[str, PreferenceLossSpec] = MappingProxyType(
    {
        "sigmoid": PreferenceLossSpec(
            f"{_LOSSES}:sigmoid", frozenset({"label_smoothing", "nll_coef"})
        ),
        "sigmoid_norm": PreferenceLossSpec(f"{_LOSSES}:sigmoid_norm", frozenset({"nll_coef"})),
        "ipo": PreferenceLossSpec(f"{_LOSSES}:ipo", frozenset({"nll_coef"})),
        "robust": PreferenceLossSpec(
            f"{_LOSSES}:robust", frozenset({"label_smoothing", "nll_coef"})
        ),
        "simpo": PreferenceLossSpec(
            f"{_LOSSES}:simpo", frozenset({"simpo_gamma", "nll_coef"}), needs_reference=False
        ),
        "orpo": PreferenceLossSpec(f"{_LOSSES}:orpo", needs_reference=False),
        "kto": PreferenceLossSpec(
            f"{_LOSSES}:kto",
            frozenset({"desirable_weight", "undesirable_weight"}),
            paired=False,
        ),
    }
)
_OWN = PreferenceLossSpec("", frozenset({"nll_coef", "label_smoothing", "simpo_gamma"}))
"""A loss of one's own: pairs, with a reference; it may read any key of the paired losses."""

_NAMES = Registry(
    "preference loss",
    {name: s.target for name, s in PREFERENCE_LOSSES.items()},
    group="mmr1.preference_losses",
)


class DpoConfig(Section):
    """Learning from preferences, offline or in rounds (``mmr1 dpo``)."""

    loss_type: str = Field(
        "sigmoid",
        description="sigmoid (DPO), sigmoid_norm, ipo, robust, simpo, orpo, kto, or a function of "
        "your own: `file.py:function`",
    )
    beta: float = Field(
        0.1,
        gt=0,
        description="β of the loss; with a reference, larger keeps the policy closer to it. "
        "IPO's τ, ORPO's λ. SimPO's paper uses 2 and more",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Share of pairs whose label is assumed to be wrong: conservative DPO with "
        "sigmoid, robust DPO with robust",
    )
    simpo_gamma: float = Field(0.5, ge=0, description="SimPO's target reward margin γ")
    desirable_weight: float | None = Field(
        None,
        ge=0,
        description="KTO's λ_D, of wanted answers. Default: 1; in rounds, where neither weight is "
        "set, the more frequent kind weighs as much as the other",
    )
    undesirable_weight: float | None = Field(
        None, ge=0, description="KTO's λ_U, of unwanted answers. Default: as desirable_weight"
    )
    nll_coef: float = Field(
        0.0, ge=0, description="Coefficient of the chosen answer's mean negative log-likelihood"
    )
    batch_size: Positive = Field(
        32, description="Pairs per step; for KTO, records (in rounds: prompts) per step"
    )
    rounds: int = Field(
        0,
        ge=0,
        description="0: train on the preferences in data.train. k: k rounds of sampling, scoring "
        "and training",
    )
    preferred_by: Literal["accuracy", "reward"] = Field(
        "accuracy",
        description="In rounds: correct completions against wrong ones, or high rewards against "
        "low ones (a reward model, a judge). KTO: above the mean of the prompt's completions",
    )
    prompts_per_round: Positive = Field(
        128, description="Prompts per round; each gets rollout.n completions"
    )
    pairs_per_prompt: Positive = Field(
        4, description="Maximum number of pairs per prompt in a round; KTO uses all completions"
    )

    @property
    def balances_labels(self) -> bool:
        """Does KTO in rounds weigh wanted and unwanted completions by their numbers?"""
        own = self.desirable_weight is not None or self.undesirable_weight is not None
        return not self.loss_spec.paired and not own

    @property
    def loss_spec(self) -> PreferenceLossSpec:
        """What is known of the loss."""
        return PREFERENCE_LOSSES.get(self.loss_type, _OWN)

    @field_validator("loss_type")
    @classmethod
    def _known(cls, name: str) -> str:
        _NAMES.check(name)
        return name

    @model_validator(mode="after")
    def _read(self) -> DpoConfig:
        for key in sorted(frozenset().union(*(s.reads for s in PREFERENCE_LOSSES.values()))):
            default = type(self).model_fields[key].default
            if getattr(self, key) != default and key not in self.loss_spec.reads:
                readers = sorted(n for n, s in PREFERENCE_LOSSES.items() if key in s.reads)
                raise ValueError(
                    f"loss_type={self.loss_type} does not read {key} (it is "
                    f"{getattr(self, key)!r}); leave it out, or choose one of {', '.join(readers)}"
                )
        return self


def load_preference_loss(name: str) -> Any:
    """The function behind ``dpo.loss_type``.

    Raises:
        ValueError: The name is unknown, or its file or function is missing.
    """
    return _NAMES.load(name)
