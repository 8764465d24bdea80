"""Reward metrics of a step, and the limit on completions without a valid reward."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from mmr1.faults import tell_fault
from mmr1.rewards.item import RewardItem
from mmr1.types import Reward, Status, StepStats

logger = logging.getLogger(__name__)


class TooManyInvalidRewardsError(RuntimeError):
    """More completions of a step than allowed have no valid reward."""


def reward_stats(rewards: Sequence[Reward]) -> StepStats:
    """The step's reward metrics.

    ``reward/mean`` and ``reward/<name>`` are means over valid values only and absent where
    there are none. ``reward/invalid`` counts the completions without a valid reward;
    ``reward/invalid/<name>`` counts them by reward function, ``reward/invalid/<status>`` by status.
    ``reward/no_answer`` counts the completions without an answer.
    """
    stats: StepStats = {"reward/invalid": float(sum(not r.valid for r in rewards))}
    stats["reward/no_answer"] = float(sum(r.status is Status.NO_ANSWER for r in rewards))
    if totals := [r.value for r in rewards if r.value is not None]:
        stats["reward/mean"] = sum(totals) / len(totals)
    for name in dict.fromkeys(name for reward in rewards for name in reward.components):
        values = [r.components[name] for r in rewards if name in r.components]
        valid = [value for value in values if value is not None]
        if valid:
            stats[f"reward/{name}"] = sum(valid) / len(valid)
        if missing := sum(_is_at_fault(name, r) for r in rewards):
            stats[f"reward/invalid/{name}"] = float(missing)
    for status, count in Counter(r.status for r in rewards if not r.valid).items():
        stats[f"reward/invalid/{status.value}"] = float(count)
    return stats


def _is_at_fault(name: str, reward: Reward) -> bool:
    """Whether this function has no valid reward; where a valid sum lacks it, it was skipped."""
    return not reward.valid and name in reward.components and reward.components[name] is None


def tell_invalid(rewards: Sequence[Reward]) -> None:
    """Tell the rewards that are not valid, by their first function without one and by status."""
    first: dict[str, Reward] = {}
    counts: Counter[str] = Counter()
    for reward in rewards:
        if not reward.valid:
            told = (reward.error or "").partition(":")[0]
            name = told if told in reward.components else "reward"
            kind = f"reward/{name}/{reward.status}"
            counts[kind] += 1
            first.setdefault(kind, reward)
    for kind, count in counts.items():
        message = f"{count} of {len(rewards)} completions have no valid reward: {first[kind].error}"
        tell_fault(logger, kind, message, count, level=logging.INFO)


def refuse_too_many_invalid(
    rewards: Sequence[Reward], items: Sequence[RewardItem], max_fraction: float
) -> None:
    """End the run when too many completions of a step have no valid reward.

    Raises:
        TooManyInvalidRewardsError: The share without one is above ``max_fraction``. Names the
            first reward function and sample.
    """
    invalid = [(r, i) for r, i in zip(rewards, items, strict=True) if not r.valid]
    if len(invalid) <= max_fraction * len(rewards):
        return
    reward, item = invalid[0]
    raise TooManyInvalidRewardsError(
        f"{len(invalid)} of {len(rewards)} completions have no valid reward, more than "
        f"rewards.max_invalid_fraction={max_fraction:g} allows; the first is sample "
        f"'{item.sample.id}': {reward.error}"
    )
