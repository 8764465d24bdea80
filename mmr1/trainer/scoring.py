"""Rewards of rollout groups, and what to do when too many of them are not valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmr1.rewards import RewardItem, Scorer
from mmr1.types import Reward, RolloutGroup, Sample, ScoredGroup
from mmr1.vision.prepare import MediaCache


class TooManyInvalidRewards(RuntimeError):  # noqa: N818 (it says what happened)
    """More completions than allowed had no valid reward."""


def check_gold(scorer: Scorer, samples: Sequence[Sample]) -> None:
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


class GroupScorer:
    """Scores whole groups through a ``Scorer`` and watches the share of invalid rewards."""

    def __init__(self, scorer: Scorer, media: MediaCache, max_invalid_fraction: float) -> None:
        self._scorer = scorer
        self._media = media
        self._max_invalid_fraction = max_invalid_fraction

    def score(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """One reward per completion.

        Raises:
            TooManyInvalidRewards: Names the commonest error and one sample that has it.
        """
        items = [item for number, group in enumerate(groups) for item in self._items(group, number)]
        rewards = self._scorer.score(items)
        self._check(items, rewards)
        queue = iter(rewards)
        return [ScoredGroup(g, tuple(next(queue) for _ in g.completions)) for g in groups]

    def _check(self, items: Sequence[RewardItem], rewards: Sequence[Reward]) -> None:
        invalid = [(i, r) for i, r in zip(items, rewards, strict=True) if not r.valid]
        if len(invalid) <= self._max_invalid_fraction * len(items):
            return
        causes = Counter(f"{r.status}: {r.error}" for _, r in invalid)
        cause, _ = causes.most_common(1)[0]
        sample = next(i.sample.id for i, r in invalid if f"{r.status}: {r.error}" == cause)
        raise TooManyInvalidRewards(
            f"{len(invalid)} of {len(items)} completions have no valid reward, more than "
            f"rewards.max_invalid_fraction={self._max_invalid_fraction} allows. Most often: "
            f"{cause} (sample '{sample}', for one)"
        )

    def _items(self, group: RolloutGroup, number: int) -> list[RewardItem]:
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
            )
            for completion in group.completions
        ]
