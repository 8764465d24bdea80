"""Judges, and items for them."""

from __future__ import annotations

from typing import Any

from mmr1.config import read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.item import RewardItem
from mmr1.types import MediaRef, Message, Reward, Sample, TextPart


def item(completion: str, *media: MediaRef, group: int = 0, answer: Any = "4") -> RewardItem:
    message = Message("user", (*media, TextPart(f"How many in {group}?")))
    return RewardItem(completion, Sample(f"s{group}", (message,), answer), group=group)


def judge(
    url: str, items: list[RewardItem], timeout_s: float = 5.0, **options: Any
) -> list[Reward]:
    options = {"url": url, "model": "m", "retries": 1, **options}
    function = {"type": "judge", **options, "timeout_s": timeout_s}
    with build_composite_reward(read_rewards({"liked": function})) as reward:
        return reward.score(items)
