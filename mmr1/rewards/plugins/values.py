"""What a reward function or a reward server returned, as rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1.rewards.item import as_reward, invalid
from mmr1.types import Reward, Status

TOTALS = ("overall", "score", "reward")


def rewards_of(
    value: Any,
    expected: int,
    batch: bool,
    skips: bool = False,
    totals: tuple[str, ...] = TOTALS,
) -> list[Reward]:
    """A function's return value as one checked reward per item.

    A mapping holds its reward under the first of the ``totals`` that it has. A wrong number of
    values leaves every item of the call without a valid reward. A None among them is a row that a
    function which ``skips`` is not for.
    """
    if not batch:
        return [_from_value(value, totals)]
    values = _as_list(value)
    if values is None or len(values) != expected:
        returned = type(value).__name__ if values is None else f"{len(values)} values"
        error = invalid(Status.ERROR, f"returned {returned} for {expected} completions")
        return [error] * expected
    return [_SKIPPED if skips and v is None else _from_value(v, totals) for v in values]


_NO_LOGS = ("rewards", "scores", "extra_logs")
"""Of OpenRLHF's protocol; other keys, such as MM-Eureka's ``accuracy_rewards``, are logged."""
_SKIPPED = Reward(None, Status.SKIPPED, error="returned None: it is not for this row")


def _as_list(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping) and "rewards" in value:
        rewards = _as_list(value["rewards"])
        logs = value.get("extra_logs") or {}
        named = {**value, **logs} if isinstance(logs, Mapping) else value
        columns = {k: _as_list(v) for k, v in named.items() if k not in _NO_LOGS}
        if rewards is None:
            return None
        extra = {  # a log called "score" is a log, and must not take the reward's place
            name: values
            for name, values in columns.items()
            if values is not None and len(values) == len(rewards) and name not in TOTALS
        }
        return [
            {"score": reward, **{k: v[i] for k, v in extra.items()}}
            for i, reward in enumerate(rewards)
        ]
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else None


def _from_value(value: Any, keys: tuple[str, ...]) -> Reward:
    """A number, or a mapping with one of the keys whose other numbers are logged."""
    if not isinstance(value, Mapping):
        return as_reward(value)
    totals = [value[key] for key in keys if key in value]
    if not totals:
        has = ", ".join(map(str, value)) or "nothing"
        return invalid(Status.ERROR, f"returned a dict without '{keys[0]}' (it has: {has})")
    reward = as_reward(totals[0])
    if not reward.valid:
        return reward
    components = {}
    for name, component in value.items():
        checked = as_reward(component)
        if name not in TOTALS and checked.valid:
            components[str(name)] = checked.value
    return Reward(reward.value, reward.status, components)
