"""Reward functions: each turns items into one checked reward per item."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mmr1.registry import suggest
from mmr1.rewards.builtin.auto import AutoRewardConfig
from mmr1.rewards.item import (
    Job,
    RewardItem,
    as_reward,
    group_means,
    group_values,
    invalid,
    reward_of_exception,
    without_accuracy,
)
from mmr1.rewards.kind import (
    OfAccuracy,
    OwnReward,
    RewardConfig,
    reward_of_task,
    rewards_of_tasks,
    section_named,
)
from mmr1.rewards.kind import reward as kind
from mmr1.rewards.plugins.columns import bind, columns_read
from mmr1.rewards.plugins.user_function import PluginReward
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.scoring import ScoringConfig
from mmr1.types import Reward, Status

Values = Mapping[str, Reward]
"""One item's rewards from the functions before this one, by name."""


class RewardFunction(Protocol):
    """One reward of a ``CompositeReward``."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that it reads."""
        ...

    def score(self, items: Sequence[RewardItem], values: Sequence[Values]) -> list[Reward]:
        """One reward for each item; ``values`` are those of the earlier functions."""
        ...

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Reasons why items' gold answers cannot be read, each a text or None."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """What a reward is made with, besides its section.

    Attributes:
        name: Its key in ``rewards``.
        pool: The verifier, for the jobs of built-in rewards.
        earlier: The rewards before it, by name.
        scoring: The section ``scoring``.
    """

    name: str
    pool: Pool
    earlier: Mapping[str, RewardFunction]
    scoring: ScoringConfig


class BuiltinReward:
    """A declared function. It is called in this process; the jobs it returns run in the pool."""

    def __init__(self, section: RewardConfig, pool: Pool) -> None:
        made = kind.build(section)
        self._function, settings, self._pool = made.func, made.keywords, pool
        self._arguments = bind(self._function, settings)
        self.columns = columns_read(self._function, settings)
        self._gold = type(section).gold
        if self._gold is not None:
            self._gold_arguments = bind(self._gold, {})

    def score(self, items: Sequence[RewardItem], values: Sequence[Values]) -> list[Reward]:
        outcomes: list[Any] = []
        for item in items:
            try:
                outcomes.append(self._function(**self._arguments(item)))
            except Exception as error:
                outcomes.append(reward_of_exception(error))
        return resolve_jobs(outcomes, self._pool)

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        return [
            reward.error for reward in resolve_jobs([self._check(i) for i in items], self._pool)
        ]

    def close(self) -> None:
        """Do nothing: the pool belongs to the composite reward."""

    def _check(self, item: RewardItem) -> Any:
        if self._gold is None:
            return 1.0
        try:
            read = self._gold(**self._gold_arguments(item))
            return read if isinstance(read, Job) else 1.0
        except ValueError as error:
            return reward_of_exception(error)


class AutoReward:
    """The reward that fits each sample's task type.

    A sample whose task is unknown or missing is an error at load, and has no valid reward.
    """

    def __init__(self, section: AutoRewardConfig, place: Place) -> None:
        self._functions = {
            name: BuiltinReward(section_named(name)(**section.settings.get(name, {})), place.pool)
            for name in sorted(set(rewards_of_tasks().values()))
        }
        columns = (column for function in self._functions.values() for column in function.columns)
        self.columns = ("task", *dict.fromkeys(columns))

    def score(self, items: Sequence[RewardItem], values: Sequence[Values]) -> list[Reward]:
        rewards = [invalid(Status.ERROR, _unknown_task(item)) for item in items]
        for name, indices in self._by_reward(items).items():
            task_rewards = self._functions[name].score([items[i] for i in indices], ())
            for index, reward in zip(indices, task_rewards, strict=True):
                rewards[index] = reward
        return rewards

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        messages: list[str | None] = [_unknown_task(item) for item in items]
        for name, indices in self._by_reward(items).items():
            task_messages = self._functions[name].check_gold([items[i] for i in indices])
            for index, message in zip(indices, task_messages, strict=True):
                messages[index] = message
        return messages

    def close(self) -> None:
        """Do nothing: the pool belongs to the composite reward."""

    def _by_reward(self, items: Sequence[RewardItem]) -> dict[str, list[int]]:
        indices: dict[str, list[int]] = {}
        for index, item in enumerate(items):
            name = reward_of_task(item.sample.task)
            if name is not None:
                indices.setdefault(name, []).append(index)
        return indices


def _unknown_task(item: RewardItem) -> str:
    task = item.sample.task
    known = rewards_of_tasks()
    return (
        f"sample '{item.sample.id}' has no task type"
        if task is None
        else f"sample '{item.sample.id}' has the task '{task}'{suggest(task, known)}"
    ) + f"; 'auto' knows: {', '.join(sorted(known))}"


_MEASURED = ("accuracy", "group_accuracy", "group_accuracies", "shuffled_accuracy")


class DerivedReward:
    """A reward that is computed from the accuracy of another one.

    Its key ``of`` names that one: an earlier one of the configuration, or a built-in that is then
    called for this purpose alone.

    Raises:
        ValueError: ``of`` names neither.
    """

    def __init__(self, section: OfAccuracy, place: Place) -> None:
        made, self._of = kind.build(section), section.of
        self._function, settings = made.func, made.keywords
        self._measured = [n for n in _MEASURED if n in inspect.signature(self._function).parameters]
        self._arguments = bind(self._function, {**settings, **dict.fromkeys(self._measured, 0.0)})
        self.columns = columns_read(self._function, settings)
        self._reuse = self._of in place.earlier
        if not self._reuse and self._of not in rewards_of_tasks().values():
            raise ValueError(
                f"rewards.{place.name}.of={self._of} is neither a reward before it "
                f"({', '.join(place.earlier) or 'there is none'}) nor a built-in accuracy"
            )
        self._accuracy = (
            place.earlier[self._of]
            if self._reuse
            else BuiltinReward(section_named(self._of)(), place.pool)
        )

    def score(self, items: Sequence[RewardItem], values: Sequence[Values]) -> list[Reward]:
        if self._reuse:
            accuracies = [value[self._of] for value in values]
        else:
            accuracies = self._accuracy.score(items, values)
        groups = group_values(
            [(item.group, reward) for item, reward in zip(items, accuracies, strict=True)]
        )
        shuffled_means = self._shuffled(items) if "shuffled_accuracy" in self._measured else {}
        return [
            self._derive(item, reward, groups.get(item.group, []), shuffled_means.get(item.group))
            for item, reward in zip(items, accuracies, strict=True)
        ]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        return [None] * len(items) if self._reuse else self._accuracy.check_gold(items)

    def close(self) -> None:
        """Do nothing: the composite reward closes the pool and the earlier function."""

    def _shuffled(self, items: Sequence[RewardItem]) -> dict[int, float]:
        """Mean accuracy of each group's completions with shuffled frames."""
        first = {item.group: item for item in reversed(items) if item.shuffled}
        shuffled_items = [
            replace(i, completion=text) for i in first.values() for text in i.shuffled or ()
        ]
        rewards = self._accuracy.score(shuffled_items, [{} for _ in shuffled_items])
        return group_means(
            [(item.group, reward) for item, reward in zip(shuffled_items, rewards, strict=True)]
        )

    def _derive(
        self,
        item: RewardItem,
        accuracy: Reward,
        group: Sequence[float],
        shuffled_accuracy: float | None,
    ) -> Reward:
        if not accuracy.valid:
            return without_accuracy(self._of, accuracy)
        accuracies = {
            "accuracy": accuracy.value,
            "group_accuracy": sum(group) / len(group),
            "group_accuracies": group,
            "shuffled_accuracy": shuffled_accuracy,
        }
        if item.shuffled is None and "shuffled_accuracy" in self._measured:
            return Reward(0.0)
        if shuffled_accuracy is None and "shuffled_accuracy" in self._measured:
            return invalid(Status.ERROR, "the item has no completions with shuffled frames")
        try:
            measured = {name: accuracies[name] for name in self._measured}
            return as_reward(self._function(**{**self._arguments(item), **measured}))
        except Exception as error:
            return reward_of_exception(error)


def resolve_jobs(outcomes: Sequence[Any], pool: Pool) -> list[Reward]:
    """Run the jobs among the outcomes, all at once, and check every value."""
    jobs = [outcome for outcome in outcomes if isinstance(outcome, Job)]
    results = iter(pool.run(jobs)) if jobs else iter(())
    return [next(results)[0] if isinstance(o, Job) else as_reward(o) for o in outcomes]


def make_reward_function(section: RewardConfig, place: Place) -> RewardFunction:
    """Return the reward function that a section describes.

    Raises:
        ValueError: If the function is unknown, cannot be loaded or does not take an option.
    """
    if isinstance(section, OwnReward):
        return PluginReward(section, tuple(place.earlier), place.scoring)
    made = kind.build(section, place)
    if hasattr(made, "score"):
        own: RewardFunction = made
        return own
    if isinstance(section, OfAccuracy):
        return DerivedReward(section, place)
    return BuiltinReward(section, place.pool)


def refuse_without_run(section: RewardConfig, place: Place) -> RewardFunction:
    """Raise ValueError: the package that loads a reward model is not here."""
    raise ValueError(
        f"rewards.{place.name} is a reward model, which needs a run; use it with mmr1 train or eval"
    )


def refuse_without_function(section: RewardConfig, place: Place) -> RewardFunction:
    """Raise ValueError: the caller's function is not here."""
    raise ValueError(
        f"rewards.{place.name} is a function that mmr1.Trainer was given in Python; give it again "
        f"there, or write it into a file: rewards.{place.name}.type=file.py:function"
    )
