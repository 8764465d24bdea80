"""The composite reward of a run: named, weighted parts, gates, and a status for the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mmr1.config import RewardsConfig
from mmr1.rewards.functions import RewardFunction, make_reward_function
from mmr1.rewards.item import RewardItem
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Reward, Sample, Status


def build_composite_reward(
    config: RewardsConfig, given: Mapping[str, RewardFunction] | None = None
) -> CompositeReward:
    """The scorer a configuration describes; its verifier starts with the first hard verdict.

    ``given`` are parts by name that this package cannot make, such as reward models.

    Raises:
        ValueError: A part is unknown, cannot be loaded, or has an option it does not know.
    """
    return CompositeReward(config, given or {})


class CompositeReward:
    """Scores completions with the parts of a configuration; close it when done."""

    def __init__(self, config: RewardsConfig, given: Mapping[str, RewardFunction]) -> None:
        self.config = config
        self._pool = Pool(
            config.workers,
            config.timeout_s,
            start_s=config.start_timeout_s,
            allow_weak=config.allow_weak_sandbox,
        )
        self._functions: dict[str, RewardFunction] = {}
        try:
            for name, part in config.functions.items():
                self._functions[name] = given.get(name) or make_reward_function(
                    name,
                    part,
                    self._pool,
                    self._functions,
                    rewards=config,
                )
        except BaseException:
            self.close()
            raise

    def score(self, items: Sequence[RewardItem]) -> list[Reward]:
        """The reward of each item, in order.

        ``value`` is the weighted sum of the parts; ``parts`` holds them unweighted. A part below
        its gate makes the parts after it 0 without running them. One part without a valid reward
        leaves the whole without one: ``value`` is None, and ``error`` names the part.
        """
        values: list[dict[str, Reward]] = [{} for _ in items]
        open_items = list(range(len(items)))
        for name, part in self._functions.items():
            rewards = part.score(
                [items[index] for index in open_items], [values[index] for index in open_items]
            )
            assert len(rewards) == len(open_items), (name, len(rewards))
            for index, reward in zip(open_items, rewards, strict=True):
                values[index][name] = reward
            gate = self.config.functions[name].gate
            if gate is not None:
                open_items = [i for i in open_items if _passes(values[i][name], gate)]
        return [self._combine(found) for found in values]

    def check_gold(self, samples: Iterable[Sample]) -> list[tuple[Sample, str]]:
        """The samples whose gold answer a part cannot read, each with the reason."""
        items = [RewardItem("", sample) for sample in samples]
        problems: list[tuple[Sample, str]] = []
        for name, part in self._functions.items():
            for item, message in zip(items, part.check_gold(items), strict=True):
                if message is not None:
                    problems.append((item.sample, f"{name}: {message}"))
        return problems

    def close(self) -> None:
        """End every process; safe to call twice."""
        for part in self._functions.values():
            part.close()
        self._pool.close()

    def __enter__(self) -> CompositeReward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _combine(self, found: dict[str, Reward]) -> Reward:
        parts: dict[str, float | None] = {}
        total, status = 0.0, Status.OK
        for name, config in self.config.functions.items():
            reward = found.get(name)  # None behind a closed gate
            parts[name] = 0.0 if reward is None else reward.value
            if reward is not None and reward.status is Status.NO_ANSWER:
                status = Status.NO_ANSWER
            total += config.weight * (parts[name] or 0.0)
        for name, reward in found.items():
            parts.update({f"{name}/{sub}": value for sub, value in reward.components.items()})
            if not reward.valid:
                return Reward(None, reward.status, parts, f"{name}: {reward.error}")
        return Reward(total, status, parts)


def _passes(reward: Reward, gate: float) -> bool:
    return reward.value is None or reward.value >= gate
