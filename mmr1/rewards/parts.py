"""One part of a reward: items in, one checked reward for each out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mmr1.config import RewardPartConfig
from mmr1.rewards.builtin import REWARDS, gold_check
from mmr1.rewards.columns import bind, check_options
from mmr1.rewards.item import Job, RewardItem, as_reward, from_exception
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Reward


class Part(Protocol):
    """What the scorer knows of a part."""

    def score(self, items: Sequence[RewardItem]) -> list[Reward]: ...

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]: ...

    def close(self) -> None: ...


class BuiltinPart:
    """A function of mmr1's own, called here; its jobs run in the pool.

    Raises:
        ValueError: The function does not take one of the options.
    """

    def __init__(self, name: str, config: RewardPartConfig, pool: Pool) -> None:
        self._function = REWARDS.load(name)
        self._pool = pool
        check_options(self._function, config.options, name)
        self._arguments = bind(self._function, config.options)
        self._gold = gold_check(name)
        self._options = config.options

    def score(self, items: Sequence[RewardItem]) -> list[Reward]:
        return settle([self._call(item) for item in items], self._pool)

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Why the gold answer of each item cannot be read, or None."""
        if self._gold is None:
            return [None] * len(items)
        known = {k: v for k, v in self._options.items() if k in _parameters(self._gold)}
        arguments = bind(self._gold, known)
        outcomes: list[Any] = []
        for item in items:
            try:
                outcomes.append(self._gold(**arguments(item)) or 1.0)
            except ValueError as error:
                outcomes.append(from_exception(error))
        return [reward.error for reward in settle(outcomes, self._pool)]

    def close(self) -> None:
        """Nothing: the pool belongs to the scorer."""

    def _call(self, item: RewardItem) -> Any:
        try:
            return self._function(**self._arguments(item))
        except Exception as error:
            return from_exception(error)


def settle(outcomes: Sequence[Any], pool: Pool) -> list[Reward]:
    """Run the jobs among the outcomes, all at once, and check every value."""
    jobs = [outcome for outcome in outcomes if isinstance(outcome, Job)]
    done = iter(pool.run(jobs)) if jobs else iter(())
    return [next(done)[0] if isinstance(o, Job) else as_reward(o) for o in outcomes]


def _parameters(function: Any) -> set[str]:
    code = function.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def make_part(name: str, config: RewardPartConfig, pool: Pool) -> Part:
    """The part a configuration describes. Raises ValueError naming what is wrong with it."""
    use = config.use or name
    return BuiltinPart(use, config, pool)
