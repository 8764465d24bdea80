"""Verifiable rewards and the sandbox that runs them. Imports neither torch nor ray.

The verifier's workers import modules of this package; loading the names lazily keeps the
configuration and its libraries out of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmr1.rewards.composite import Scorer, build_scorer
    from mmr1.rewards.functions import Part
    from mmr1.rewards.item import BadGoldError, Job, RewardItem

_HOME = {
    "BadGoldError": "item",
    "Job": "item",
    "Part": "functions",
    "RewardItem": "item",
    "Scorer": "composite",
    "build_scorer": "composite",
}
__all__ = ["BadGoldError", "Job", "Part", "RewardItem", "Scorer", "build_scorer"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"mmr1.rewards.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
