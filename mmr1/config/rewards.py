"""The section ``rewards``: names of rewards, each with its weight and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from mmr1.rewards.kind import RewardConfig, reward, section_named

MOVED = {
    "functions": "rewards itself, with type in place of use, and without options around settings",
    "workers": "scoring.workers",
    "timeout_s": "scoring.timeout_s",
    "allow_weak_sandbox": "scoring.allow_weak_sandbox",
    "max_invalid_fraction": "scoring.max_invalid_fraction",
}
"""Keys of before by their new name."""


def _kept(rewards: Any) -> Any:
    """Refuse keys of before, and drop rewards that are null."""
    if not isinstance(rewards, Mapping):
        return rewards
    for name in rewards.keys() & MOVED.keys():
        raise ValueError(f"rewards.{name} is now {MOVED[name]}")
    return {name: value for name, value in rewards.items() if value is not None}


if TYPE_CHECKING:
    AnyReward = RewardConfig
else:
    AnyReward = reward.union()
Rewards = Annotated[dict[str, AnyReward], BeforeValidator(_kept), Field(min_length=1)]
"""A number is short for a weight, a text for a type; the name is the type where none is given."""


def default_rewards() -> dict[str, RewardConfig]:
    """Return the rewards where a configuration names none."""
    return {"format": section_named("format")(weight=0.5), "math": section_named("math")()}


def weights_of(rewards: Mapping[str, RewardConfig]) -> dict[str, float]:
    """Return the weights of the rewards that are not just logged, by name."""
    return {name: each.weight for name, each in rewards.items() if each.weight}
