"""Reward functions: each turns items into one checked reward per item."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mmr1.config import PluginConfig, RewardsConfig
from mmr1.config.rewards import RewardFunction as FunctionConfig
from mmr1.registry import suggest
from mmr1.rewards.builtin import (
    DERIVED,
    PYTHON,
    REWARD_MODEL,
    REWARDS,
    TASKS,
    gold_check,
    reward_of_task,
)
from mmr1.rewards.http.addresses import is_url
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
from mmr1.rewards.judges.judge import JUDGE_TIMEOUT_S, JudgeReward
from mmr1.rewards.plugins.columns import bind, check_options, columns_read
from mmr1.rewards.plugins.http_client import RemoteReward
from mmr1.rewards.plugins.user_function import PluginReward
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Reward, Status

Values = Mapping[str, Reward]
"""One item's rewards from the functions before this one, by name."""


class RewardFunction(Protocol):
    """One function of a ``CompositeReward``."""

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


class BuiltinReward:
    """A built-in function. It is called in this process; the jobs it returns run in the pool.

    Raises:
        ValueError: The function does not take one of the options, or lacks one it needs.
    """

    def __init__(self, name: str, options: Mapping[str, Any], pool: Pool) -> None:
        self._function = REWARDS.load(name)
        self._pool = pool
        check_options(self._function, options, name)
        self._arguments = bind(self._function, options)
        self.columns = columns_read(self._function, options)
        self._gold = gold_check(name)
        if self._gold is not None:
            gold_parameters = inspect.signature(self._gold).parameters
            self._gold_arguments = bind(
                self._gold, {k: v for k, v in options.items() if k in gold_parameters}
            )

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
            gold = self._gold(**self._gold_arguments(item))
            return gold if isinstance(gold, Job) else 1.0
        except ValueError as error:
            return reward_of_exception(error)


class AutoReward:
    """The built-in that fits each sample's task type.

    A built-in's options are given under its name: ``{"iou": {"space": "resized"}}``. A sample whose
    task is unknown or missing is an error at load, and has no valid reward.
    """

    def __init__(self, options: Mapping[str, Any], pool: Pool) -> None:
        names = sorted(set(TASKS.values()))
        for name in options:
            if name not in names:
                raise ValueError(
                    f"reward function 'auto' has no option '{name}'{suggest(name, names)}; "
                    f"it takes the options of: {', '.join(names)}"
                )
        self._functions = {name: BuiltinReward(name, options.get(name, {}), pool) for name in names}
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
    tasks = ", ".join(sorted(TASKS))
    return (
        f"sample '{item.sample.id}' has no task type"
        if task is None
        else f"sample '{item.sample.id}' has the task '{task}'{suggest(task, TASKS)}"
    ) + f"; 'auto' knows: {tasks}"


class DerivedReward:
    """A built-in that is computed from the accuracy of another reward function.

    The option ``of`` names that function: an earlier one of the configuration, or a built-in that
    is then called for this purpose alone.

    Raises:
        ValueError: ``of`` names neither.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        pool: Pool,
        earlier: Mapping[str, RewardFunction],
    ) -> None:
        function = REWARDS.load(name)
        self._function = function
        self._of = str(options.get("of", "math"))
        function_options = {k: v for k, v in options.items() if k != "of"}
        check_options(function, function_options, name)
        measurable = ("accuracy", "group_accuracy", "group_accuracies", "shuffled_accuracy")
        self._measured = [n for n in measurable if n in inspect.signature(function).parameters]
        self._arguments = bind(function, {**function_options, **dict.fromkeys(self._measured, 0.0)})
        self.columns = columns_read(function, function_options)
        self._reuse = self._of in earlier
        if not self._reuse and (self._of in DERIVED or self._of not in REWARDS.builtin):
            raise ValueError(
                f"reward function '{name}': of={self._of} is neither a function before it "
                f"({', '.join(earlier) or 'there is none'}) nor a built-in accuracy"
            )
        self._accuracy = earlier[self._of] if self._reuse else BuiltinReward(self._of, {}, pool)

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


def make_reward_function(
    name: str,
    config: FunctionConfig,
    pool: Pool,
    earlier: Mapping[str, RewardFunction],
    *,
    rewards: RewardsConfig,
) -> RewardFunction:
    """The reward function that a configuration describes.

    Args:
        name: Its key in ``rewards.functions``; the built-in's name where ``use`` is absent.
        config: Its configuration.
        pool: The verifier, for built-ins.
        earlier: The functions before it, by name.
        rewards: Its section, for the workers and for the deadline of a plugin without its own.

    Raises:
        ValueError: It is unknown, cannot be loaded or does not take an option.
    """
    use = config.use or name
    if use == REWARD_MODEL:
        raise ValueError(
            f"reward function '{name}' is a reward model, which needs a run; "
            "use it with mmr1 train or eval"
        )
    if use == PYTHON:
        raise ValueError(
            f"reward function '{name}' is a function that mmr1.Trainer was given in Python; give "
            f"it again there, or write it into a file: "
            f"rewards.functions.{name}.use=file.py:function"
        )
    if use == "auto":
        return AutoReward(config.options, pool)
    if use in DERIVED:
        return DerivedReward(use, config.options, pool, earlier)
    timeout_s = config.call_timeout_s or rewards.timeout_s
    if use == "judge":
        return JudgeReward(name, config.options, timeout_s=config.call_timeout_s or JUDGE_TIMEOUT_S)
    if use in REWARDS.builtin:
        return BuiltinReward(use, config.options, pool)
    if is_url(use):
        try:
            return RemoteReward(use, config.options, timeout_s=timeout_s)
        except ValueError as error:
            raise ValueError(f"reward function '{name}': {error}") from error
    own = config if isinstance(config, PluginConfig) else None  # not an installed package's
    return PluginReward(
        use,
        config.options,
        style=None if own is None else own.style,
        call=None if own is None else own.call,
        earlier=tuple(earlier),
        isolated=config.isolated,
        workers=rewards.processes,
        timeout_s=timeout_s,
        readable=config.readable,
        allow_weak=rewards.allow_weak_sandbox,
    )
