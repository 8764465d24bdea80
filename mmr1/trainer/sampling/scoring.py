"""Rewards of rollout groups, and what to do when too many of them are not valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mmr1.rewards import CompositeReward, RewardItem
from mmr1.rewards.accounting import refuse_too_many_invalid
from mmr1.types import RolloutGroup, Sample, ScoredGroup
from mmr1.vision.prepare import MediaCache


def check_gold(scorer: CompositeReward, samples: Sequence[Sample]) -> None:
    """Refuse answers that no reward can read, before anything is trained on them.

    Raises:
        ValueError: Names the first such sample and counts the others.
    """
    unreadable = scorer.check_gold(samples)
    if unreadable:
        sample, message = unreadable[0]
        others = f" ({len(unreadable) - 1} more like it)" if len(unreadable) > 1 else ""
        raise ValueError(
            f"sample '{sample.id}': the answer {sample.answer!r} cannot be used: {message}{others}"
            "; mend or drop these rows, or choose another reward"
        )


class RewardManager:
    """Scores groups through a ``CompositeReward`` and watches the share of invalid rewards."""

    def __init__(
        self, scorer: CompositeReward, media: MediaCache, max_invalid_fraction: float
    ) -> None:
        self._scorer = scorer
        self._media = media
        self._max_invalid_fraction = max_invalid_fraction

    def score(
        self,
        groups: Sequence[RolloutGroup],
        shuffled: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    ) -> list[ScoredGroup]:
        """One reward per completion; ``shuffled`` are texts for shuffled frames, by group's place.

        Raises:
            TooManyInvalidRewardsError: Names one part and one sample.
        """
        items = [
            item
            for number, group in enumerate(groups)
            for item in self._items(group, number, shuffled.get(number))
        ]
        rewards = self._scorer.score(items)
        refuse_too_many_invalid(rewards, items, self._max_invalid_fraction)
        queue = iter(rewards)
        return [ScoredGroup(g, tuple(next(queue) for _ in g.completions)) for g in groups]

    def _items(
        self, group: RolloutGroup, number: int, shuffled: tuple[str, ...] | None
    ) -> list[RewardItem]:
        prepared = [self._media[m] for m in group.prompt.media]
        return [
            RewardItem(
                completion=completion.text,
                sample=group.prompt.sample,
                prompt=group.prompt.text,
                token_ids=tuple(completion.token_ids.tolist()),
                truncated=completion.truncated,
                group=number,
                media_sizes=tuple(m.pixels for m in prepared),
                grid_thw=tuple(m.grid for m in prepared),
                shuffled=shuffled,
            )
            for completion in group.completions
        ]
