"""``rollout.views``: completions sampled under another view of the pictures."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mmr1.section import Coefficient, Fraction, Need, Section, Share

View = Literal["noise", "crop", "mask", "resolution", "shuffle", "blank"]
WHOLE: frozenset[View] = frozenset(("shuffle", "blank"))
"""The views without a strength."""


def check_strength(view: View, strength: float | None) -> None:
    """Raises ValueError for a view without the strength that it needs, or with one too many."""
    if view in WHOLE and strength is not None:
        raise ValueError(f"{view} has no strength; set it to null")
    if view not in WHOLE and strength is None:
        raise ValueError(f"{view} needs a strength, above 0 and at most 1")


class AnnealingConfig(Section):
    """The strength falls along a sigmoid over the steps of the run (NoisyRollout)."""

    midpoint: Fraction = Field(
        2 / 3, description="Share of the run's steps after which half of the strength is left"
    )
    steepness: Coefficient = Field(
        30, description="How fast it falls there; 30: in a fifth of them"
    )

    def factor(self, progress: float) -> float:
        """``1 - sigmoid(steepness * (progress - midpoint))``; progress is step over steps."""
        return 1 - 1 / (1 + math.exp(-self.steepness * (progress - self.midpoint)))


def _compares_nothing(c: Any) -> bool:
    beside = c.rollout.views is not None and c.rollout.views.loss == "none"
    return beside and all(reward.type != "temporal_contrast" for reward in c.rewards.values())


def _learns_own_view(c: Any) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "own"


class ViewsConfig(Section):
    """A share of each group is sampled under another view of its pictures and videos."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("rollout.views.loss", "algorithm.advantage.critic"),
            lambda c: _learns_own_view(c) and c.algorithm.critic is not None,
            "a critic has one prompt for each group; set rollout.views.loss=clean",
            (
                "rollout.views.view=noise",
                "rollout.views.strength=0.5",
                "rollout.views.loss=own",
                "algorithm=ppo",
            ),
        ),
        Need(
            ("rollout.views.loss",),
            _compares_nothing,
            "nothing reads these completions; add the reward temporal_contrast (T-GRPO), or choose "
            "another loss",
            ("rollout.views.view=shuffle", "rollout.views.loss=none"),
        ),
    )

    view: View = Field(
        description="noise, crop, mask, resolution, shuffle (the frames of videos), blank (grey)"
    )
    strength: Share | None = Field(
        None,
        description="noise: step of 1000 of a diffusion process, 0.5 is 500; crop: share of each "
        "side cut off; mask: of the patches black; resolution: of rows and columns lost",
    )
    share: Share = Field(0.5, description="Completions of rollout.n that it is for, at least one")
    loss: Literal["clean", "own", "none"] = Field(
        "clean",
        description="View under which the loss reads them. clean: the original (NoisyRollout); "
        "own: that which they saw; none: they come on top of rollout.n, for the reward "
        "temporal_contrast (T-GRPO)",
    )
    annealing: AnnealingConfig | None = Field(
        None, description="The strength falls over the steps; null: it stays"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_strength(self.view, self.strength)
        if self.view in WHOLE and self.annealing is not None:
            raise ValueError(f"{self.view} has no strength to fall; leave annealing out")
        return self

    def count(self, n: int) -> int:
        """Completions of a group of ``n`` under the view."""
        return max(1, int(n * self.share))

    def strength_at(self, step: int, steps: int) -> float:
        """The strength at a step, the first is 1; 1 for a view without one."""
        if self.strength is None:
            return 1.0
        if self.annealing is None:
            return self.strength
        return self.strength * self.annealing.factor(step / steps)
