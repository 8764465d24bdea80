"""Verifiable rewards and the sandbox that runs them. Imports neither torch nor ray.

The verifier's workers import modules of this package. The names are loaded lazily, so that the
workers do not import the configuration and its libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmr1.rewards.composite import CompositeReward, build_composite_reward
    from mmr1.rewards.functions import RewardFunction
    from mmr1.rewards.item import BadGoldError, Job, RewardItem
    from mmr1.rewards.kind import reward

_HOME = {
    "BadGoldError": "item",
    "Job": "item",
    "RewardFunction": "functions",
    "RewardItem": "item",
    "CompositeReward": "composite",
    "build_composite_reward": "composite",
    "reward": "kind",
}
__all__ = [
    "BadGoldError",
    "CompositeReward",
    "Job",
    "RewardFunction",
    "RewardItem",
    "build_composite_reward",
    "reward",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"mmr1.rewards.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
