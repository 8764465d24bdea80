"""Rewards of conversations with an environment: what it gave, and that a tool was of use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def environment(environment_reward: float | None) -> float:
    """What the environment's ``step`` returned as rewards, added up.

    Raises:
        ValueError: It returned none.

    >>> environment(0.5)
    0.5
    """
    if environment_reward is None:
        raise ValueError("the environment gave no reward; let its step return one")
    return float(environment_reward)


def tool_use(tool_calls: Sequence[Mapping[str, Any]]) -> float:
    """1 if a tool was called and did not fail, else 0.

    >>> tool_use([{"name": "zoom", "error": "no box"}, {"name": "zoom", "error": None}])
    1.0
    """
    return float(any(call.get("error") is None for call in tool_calls))
