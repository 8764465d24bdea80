"""Completions that are sampled while the model sees the media in another view (``rollout.views``).

A share of each group, which the update reads under the original (NoisyRollout, arXiv 2504.13055) or
under the view they saw; or completions beside the group, for a reward that compares (T-GRPO).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from mmr1.trainer.sampling.views import under
from mmr1.types import RolloutGroup, ScoredGroup, StepStats


def by_own_view(scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Each group cut where the view changes, with the prompt that its completions saw.

    The order of the completions stays.
    """
    parts = []
    for group in scored:
        completions, start = group.group.completions, 0
        for view, members in groupby(completions, key=lambda completion: dict(completion.view)):
            own = slice(start, start := start + len(list(members)))
            prompt = under(group.group.prompt, view)
            parts.append(
                replace(
                    group,
                    group=RolloutGroup(prompt, completions[own]),
                    rewards=group.rewards[own],
                    steps=None if group.steps is None else group.steps[own],
                )
            )
    return parts


def view_stats(scored: Iterable[ScoredGroup]) -> StepStats:
    """``views/reward_clean`` and ``views/reward_perturbed``: mean rewards, of those that are."""
    rewards: dict[bool, list[float]] = {False: [], True: []}
    for group in scored:
        for completion, reward in zip(group.group.completions, group.rewards, strict=True):
            if reward.value is not None:
                rewards[bool(completion.view)].append(reward.value)
    names = {False: "views/reward_clean", True: "views/reward_perturbed"}
    return {names[other]: fmean(values) for other, values in rewards.items() if values}
