"""A reward function that was given in Python: it runs in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmr1.rewards.item import RewardItem, reward_of_exception
from mmr1.rewards.plugins.dialects import call, detect, rewards_of
from mmr1.rewards.plugins.user_function import calls_of
from mmr1.types import Reward


class GivenReward:
    """A closure, a lambda or any other function as a ``RewardFunction``; no pickling, no sandbox.

    It has the signatures of a plugin and runs in the thread that asks: no deadline ends it.

    Raises:
        ValueError: Its signature is that of no dialect, or it is async.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise ValueError(
                f"reward function '{name}' is async; write it into a file and name that: "
                "file.py:function"
            )
        try:
            self._dialect = detect(function, {})
        except ValueError as error:
            raise ValueError(f"reward function '{name}': {error}") from error
        self._function = function

    def score(
        self, items: Sequence[RewardItem], values: Sequence[Mapping[str, Reward]]
    ) -> list[Reward]:
        scores = ({name: reward.value for name, reward in before.items()} for before in values)
        asked = [replace(i, earlier={"scores": s}) for i, s in zip(items, scores, strict=True)]
        rewards: dict[int, Reward] = {}
        for indices in calls_of(items, self._dialect.call):
            answers = self._call([asked[index] for index in indices])
            rewards.update(zip(indices, answers, strict=True))
        return [rewards[index] for index in range(len(items))]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Nothing is checked: only the function knows what its golds are."""
        return [None] * len(items)

    def close(self) -> None:
        """Nothing to close."""

    def _call(self, items: Sequence[RewardItem]) -> list[Reward]:
        try:
            value = call(self._function, self._dialect, items, {})
        except Exception as error:
            return [reward_of_exception(error)] * len(items)
        return rewards_of(value, len(items), self._dialect.call != "item", self._dialect.skips)
