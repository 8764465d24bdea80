"""Pass rates: sample answers from a served model and count the right ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from datasets_prep.server import PARALLEL, Server, in_order, prompt_of
from mmr1.config import RewardsConfig
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.rewards.judges.replies import Reply
from mmr1.types import Sample, TextPart


def pass_rates(samples: Iterable[Sample], server: Server, count: int) -> Iterator[float]:
    """Each sample's mean reward over ``count`` sampled answers, in their order.

    The samples are taken as they are needed.

    Raises:
        ValueError: The server fails, or a sample's reward cannot be computed.
    """
    config = RewardsConfig.model_validate({"functions": {"auto": 1.0}})
    with build_composite_reward(config) as composite_reward:
        answered = in_order(samples, lambda s: server.replies(prompt_of(s), count, s.id))
        while batch := list(islice(answered, 2 * PARALLEL)):
            yield from _graded(composite_reward, batch)


def without_media(sample: Sample) -> Sample:
    """The sample with the text of its messages alone."""
    messages = (
        replace(message, parts=tuple(p for p in message.parts if isinstance(p, TextPart)))
        for message in sample.messages
    )
    return replace(sample, messages=tuple(messages))


def _graded(
    composite_reward: CompositeReward, batch: Sequence[tuple[Sample, Sequence[Reply]]]
) -> list[float]:
    items = [
        RewardItem(completion=reply.text, sample=sample, group=number)
        for number, (sample, replies) in enumerate(batch)
        for reply in replies
    ]
    rates: list[list[float]] = [[] for _ in batch]
    for item, reward in zip(items, composite_reward.score(items), strict=True):
        if reward.value is None:
            raise ValueError(f"{item.sample.id}: no valid reward: {reward.error}")
        rates[item.group].append(reward.value)
    return [sum(values) / len(values) if values else 0.0 for values in rates]
