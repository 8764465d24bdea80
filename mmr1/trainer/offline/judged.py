"""Scored completions as preferences: pairs, or completions that are wanted or not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product

from mmr1.config import RoundsConfig
from mmr1.trainer.offline.dpo import PAIR
from mmr1.trainer.validation.evaluate import is_right
from mmr1.types import Completion, Reward, RolloutGroup, ScoredGroup

Labelled = tuple[RolloutGroup, tuple[bool, ...]]
"""Completions of one prompt, and whether each is wanted."""


class NoPreferencesError(RuntimeError):
    """The completions of a round gave nothing to learn from."""


def judged(
    scored: Sequence[ScoredGroup],
    config: RoundsConfig,
    paired: bool,
    accuracy_name: str,
    rng: random.Random,
) -> list[Labelled]:
    """What a round learns from: pairs, or for KTO each prompt's labelled completions.

    Equal completions of a prompt count once. Completions without a valid reward are left out.

    Raises:
        NoPreferencesError: There is nothing.
    """
    found: list[Labelled] = []
    for group in scored:
        rated = _distinct(group)
        if not paired:
            found += _labelled(group, rated, config, accuracy_name)
            continue
        pairs = (
            _best_with_worst(rated)
            if config.preferred_by == "reward"
            else _right_with_wrong(rated, accuracy_name, rng)
        )
        found += [
            (RolloutGroup(group.group.prompt, pair), PAIR)
            for pair in pairs[: config.pairs_per_prompt]
        ]
    if not found:
        raise NoPreferencesError(_nothing(scored, config, accuracy_name))
    return found


def _distinct(scored: ScoredGroup) -> list[tuple[Completion, Reward]]:
    valid = [
        (completion, reward)
        for completion, reward in zip(scored.group.completions, scored.rewards, strict=True)
        if reward.valid
    ]
    return list({c.token_ids.tobytes(): (c, r) for c, r in valid}.values())


def _right_with_wrong(
    rated: Iterable[tuple[Completion, Reward]], accuracy_name: str, rng: random.Random
) -> list[tuple[Completion, Completion]]:
    """All pairs of a right and a wrong completion, in random order.

    Only right completions with the highest reward are used, so that the format counts too.
    """
    right = [(c, r) for c, r in rated if is_right(r, accuracy_name)]
    best = max((_value(r) for _, r in right), default=None)
    winners = [c for c, r in right if r.value == best]
    losers = [c for c, r in rated if not is_right(r, accuracy_name)]
    pairs = list(product(winners, losers))
    rng.shuffle(pairs)
    return pairs


def _best_with_worst(
    rated: Iterable[tuple[Completion, Reward]],
) -> list[tuple[Completion, Completion]]:
    """The best with the worst, the second best with the second worst, while rewards differ."""
    ranked = sorted(rated, key=lambda both: -_value(both[1]))
    return [
        (best, worst)
        for (best, high), (worst, low) in zip(ranked, reversed(ranked), strict=True)
        if _value(high) > _value(low)
    ]


def _labelled(
    scored: ScoredGroup,
    rated: Sequence[tuple[Completion, Reward]],
    config: RoundsConfig,
    accuracy_name: str,
) -> list[Labelled]:
    """Wanted: right, or above the mean reward of the prompt's completions."""
    if config.preferred_by == "reward":
        mean = sum(_value(r) for _, r in rated) / max(len(rated), 1)
        kept = [(c, _value(r) > mean) for c, r in rated if r.value != mean]
    else:
        kept = [(c, is_right(r, accuracy_name)) for c, r in rated]
    if not kept:
        return []
    group = RolloutGroup(scored.group.prompt, tuple(c for c, _ in kept))
    return [(group, tuple(wanted for _, wanted in kept))]


def _value(reward: Reward) -> float:
    assert reward.value is not None, "only valid rewards are compared"
    return reward.value


def _nothing(scored: Sequence[ScoredGroup], config: RoundsConfig, accuracy_name: str) -> str:
    rewards = [r for s in scored for r in s.rewards]
    if config.preferred_by == "reward":
        return f"no prompt of {len(scored)} has two completions of different reward"
    right = sum(is_right(r, accuracy_name) for r in rewards)
    return (
        f"no prompt of {len(scored)} has both a right and a wrong completion "
        f"({right} of {len(rewards)} completions are right by reward function '{accuracy_name}')"
    )
