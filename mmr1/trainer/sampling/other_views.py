"""Completions that are sampled while the model sees the media in another view (``rollout.views``).

A share of each group, which the update reads under the original (NoisyRollout, arXiv 2504.13055) or
under the view they saw; or completions beside the group, for a reward that compares (T-GRPO).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from mmr1.config import SamplingConfig, ViewsConfig
from mmr1.rollout.engine import Request, RolloutEngine
from mmr1.trainer.sampling.views import changes, under
from mmr1.types import RolloutGroup, ScoredGroup, StepStats
from mmr1.vision.views import view_options


def sample_with_view(
    engine: RolloutEngine,
    requests: Sequence[Request],
    sampling: SamplingConfig,
    views: ViewsConfig,
    strength: float,
) -> list[RolloutGroup]:
    """A group for each request, whose last completions were sampled under the view.

    The group has the original prompt, and each of those completions says what it saw. A prompt
    that the view does not change has none. What a view draws depends on the request's seed: so on
    the run, the step and the record.
    """
    parts = [_parts(request, views, strength) for request in requests]
    groups = iter(engine.generate([part for of_one in parts for part, _ in of_one], sampling))
    joint = []
    for request, of_one in zip(requests, parts, strict=True):
        completions = [
            replace(completion, view=options) if options else completion
            for _, options in of_one
            for completion in next(groups).completions
        ]
        joint.append(RolloutGroup(request.prompt, tuple(completions)))
    return joint


def _parts(
    request: Request, views: ViewsConfig, strength: float
) -> list[tuple[Request, dict[str, float]]]:
    """The request cut by what the model sees: with the options of its media, none of the first."""
    if not changes(request.prompt.media, views.view):
        return [(request, {})]
    options = view_options(views.view, strength, request.seed)
    plain = request.n - views.count(request.n)
    other = replace(
        request,
        prompt=under(request.prompt, options),
        n=request.n - plain,
        seed=request.seed + plain,
    )
    return [*([(replace(request, n=plain), {})] if plain else []), (other, options)]


def sample_beside(
    engine: RolloutEngine,
    requests: Sequence[Request],
    sampling: SamplingConfig,
    views: ViewsConfig,
    strength: float,
) -> dict[int, tuple[str, ...]]:
    """Completions under the view on top of each group, by the index of the request.

    With the frames shuffled and half a group it is Video-R1's (arXiv 2503.21776, section 3.1).
    Requests that the view does not change are not in the result.
    """
    others = {
        index: replace(
            request,
            prompt=under(request.prompt, view_options(views.view, strength, request.seed)),
            n=views.count(request.n),
            seed=request.seed + request.n,
        )
        for index, request in enumerate(requests)
        if changes(request.prompt.media, views.view)
    }
    groups = engine.generate(list(others.values()), sampling) if others else []
    return {
        index: tuple(completion.text for completion in group.completions)
        for index, group in zip(others, groups, strict=True)
    }


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
    """``views/reward_clean`` and ``views/reward_other``: mean rewards, of those that are."""
    rewards: dict[bool, list[float]] = {False: [], True: []}
    for group in scored:
        for completion, reward in zip(group.group.completions, group.rewards, strict=True):
            if reward.value is not None:
                rewards[bool(completion.view)].append(reward.value)
    names = {False: "views/reward_clean", True: "views/reward_other"}
    return {names[other]: fmean(values) for other, values in rewards.items() if values}
