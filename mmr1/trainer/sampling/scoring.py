"""Score rollout groups, and stop a run when too many rewards are invalid."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mmr1.boxes import SpaceName
from mmr1.data.quarantine import Quarantine
from mmr1.data.rows import measured, select
from mmr1.rewards import CompositeReward, RewardItem
from mmr1.rewards.composite import report_invalid
from mmr1.rewards.item import invalid
from mmr1.trainer.forward.sequences import sampled_mask
from mmr1.types import Completion, Prompt, RolloutGroup, Sample, ScoredGroup, Span
from mmr1.vision.prepare import MediaCache


def keep_readable(
    composite_reward: CompositeReward,
    spec: str,
    samples: Sequence[Sample],
    quarantine: Quarantine,
    facts: Mapping[str, Any],
) -> Sequence[Sample]:
    """The samples whose gold answers the reward functions can read, checked before the first step.

    Args:
        composite_reward: Reads them.
        spec: The dataset that they were read from.
        samples: Samples of its rows that can be read.
        quarantine: Has counted the rows, and collects the samples that are left out.
        facts: Facts that the outcome depends on beside the samples, as JSON values.

    Raises:
        ValueError: More are left out than ``data.max_bad_fraction`` allows. Names the first.
    """

    def failed(block: list[Sample]) -> list[int]:
        without = {id(sample) for sample, _ in composite_reward.check_gold(block)}
        return [int(id(sample) in without) for sample in block]

    unreadable = measured(samples, "gold answers", facts, failed) != 0
    left_out = np.flatnonzero(unreadable).tolist()
    more = f" ({len(left_out) - 1} more like it)" if len(left_out) > 1 else ""
    for index in left_out:
        sample, message = composite_reward.check_gold([samples[index]])[0]
        quarantine.drop(
            spec,
            sample.id,
            f"the answer {sample.answer!r} cannot be used: {message}{more}; fix or drop these "
            "rows, or choose another reward function",
        )
        more = ""
    quarantine.check(spec)
    return select(samples, np.flatnonzero(~unreadable))


class RewardManager:
    """Scores groups through a ``CompositeReward`` and watches the share of invalid rewards."""

    def __init__(
        self,
        composite_reward: CompositeReward,
        media: MediaCache,
        max_invalid_fraction: float,
        coordinates: SpaceName | None = None,
    ) -> None:
        """``coordinates``: space of the model's boxes; see ``ModelFamily.coordinates``."""
        self._coordinates = coordinates
        self._composite_reward = composite_reward
        self._media = media
        self._max_invalid_fraction = max_invalid_fraction

    def score(
        self,
        groups: Sequence[RolloutGroup],
        shuffled: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
        check: bool = True,
    ) -> list[ScoredGroup]:
        """One reward per completion.

        Args:
            groups: The rollout groups.
            shuffled: Completions for shuffled frames (T-GRPO), by the index of their group.
            check: False if :meth:`check` follows, for more groups than these.

        Raises:
            TooManyInvalidRewardsError: The share without a valid reward is above the limit.
        """
        items = [
            item
            for number, group in enumerate(groups)
            for item in self._items(group, number, shuffled.get(number))
        ]
        failures = [c.failure for g in groups for c in g.completions]
        # No reward function is asked about a conversation whose environment broke.
        whole = [item for item, failure in zip(items, failures, strict=True) if failure is None]
        own = iter(self._composite_reward.score(whole))
        rewards = [
            next(own) if failure is None else invalid(failure[0], f"environment: {failure[1]}")
            for failure in failures
        ]
        in_order = iter(rewards)
        scored = [ScoredGroup(g, tuple(next(in_order) for _ in g.completions)) for g in groups]
        if check:
            self.check(scored)
        return scored

    def check(self, scored: Sequence[ScoredGroup]) -> None:
        """Report the rewards that are not valid.

        Raises:
            TooManyInvalidRewardsError: If the share of completions without a valid reward is above
                the limit.
        """
        rewards = [reward for s in scored for reward in s.rewards]
        samples = [s.group.prompt.sample for s in scored for _ in s.rewards]
        report_invalid(rewards, samples, self._max_invalid_fraction)

    def _items(
        self, group: RolloutGroup, number: int, shuffled: tuple[str, ...] | None
    ) -> list[RewardItem]:
        prepared = [self._media[m] for m in group.prompt.media]
        return [
            RewardItem(
                completion=_opened(group.prompt, completion) + completion.text,
                sample=group.prompt.sample,
                prompt=group.prompt.text,
                token_ids=_sampled_ids(completion),
                truncated=completion.truncated,
                group=number,
                media_sizes=tuple(m.pixels for m in prepared),
                grid_thw=tuple(m.grid for m in prepared),
                shuffled=shuffled,
                messages=tuple(map(_message, completion.spans)),
                tool_calls=tuple(
                    {"name": c.name, "arguments": dict(c.arguments), "error": c.error}
                    for span in completion.spans
                    for c in span.calls
                ),
                environment_reward=completion.reward,
                model_space=self._coordinates,
            )
            for completion in group.completions
        ]


def _opened(prompt: Prompt, completion: Completion) -> str:
    """Return what the chat template has written of the last turn, which the policy continued."""
    observed = [span for span in completion.spans if span.role == "tool"]
    by_template = not observed or bool(observed[-1].answers)
    return prompt.opened if by_template else ""


def _sampled_ids(completion: Completion) -> array[int]:
    """The policy's tokens; an array, because a step may have millions of them."""
    ids = completion.token_ids
    if completion.spans:
        ids = ids[sampled_mask(completion).numpy()]
    return array("q", ids.astype(np.int64, copy=False).tobytes())


def _message(span: Span) -> dict[str, Any]:
    message: dict[str, Any] = {"role": span.role, "content": span.text}
    return {**message, "images": [m.digest() for m in span.media]} if span.media else message
