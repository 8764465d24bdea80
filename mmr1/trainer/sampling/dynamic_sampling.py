"""Which rollouts a step learns from: all, or with DAPO's dynamic sampling those with a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mmr1.config import AlgorithmConfig
from mmr1.types import ScoredGroup, StepStats

Draw = Callable[[int, int], list[ScoredGroup]]
"""``(prompts, number of the draw from 0) -> scored groups`` of the sampler's next prompts."""


class NoSignalError(RuntimeError):
    """No group of a step has rewards that differ; there is nothing to learn from."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step sampled.

    Attributes:
        kept: The groups that the update gets.
        everything: All groups; means of rewards are over these, or they would be biased.
        stats: How much was drawn; empty without dynamic sampling.
    """

    kept: list[ScoredGroup]
    everything: list[ScoredGroup]
    stats: StepStats


def draw_groups(draw: Draw, wanted: int, config: AlgorithmConfig) -> Drawn:
    """``wanted`` groups, each with a signal where ``algorithm.dynamic_sampling`` is on.

    Dynamic sampling (arXiv 2503.14476, section 3.2) draws again until enough groups have rewards
    that differ, ``oversample`` times as many prompts as are missing. After ``max_draws`` the step
    goes on with the groups it has.

    Raises:
        NoSignalError: Not one group has a signal after ``max_draws``.
    """
    if not config.dynamic_sampling:
        groups = draw(wanted, 0)
        return Drawn(groups, groups, {})
    everything: list[ScoredGroup] = []
    kept: list[ScoredGroup] = []
    draws = 0
    while len(kept) < wanted and draws < config.max_draws:
        new = draw(math.ceil((wanted - len(kept)) * config.oversample), draws)
        everything += new
        kept += [group for group in new if has_signal(group)]
        draws += 1
    if not kept:
        raise NoSignalError(_no_signal(everything, draws))
    stats = {
        "sampling/draws": float(draws),
        "sampling/no_signal": float(sum(not has_signal(group) for group in everything)),
        "sampling/surplus": float(max(0, len(kept) - wanted)),
        "sampling/extra_rollouts": float(
            sum(len(s.rewards) for s in everything) - sum(len(s.rewards) for s in kept[:wanted])
        ),
    }
    return Drawn(kept[:wanted], everything, stats)


def has_signal(scored: ScoredGroup) -> bool:
    """Do the valid rewards of the group differ?"""
    return len({r.value for r in scored.rewards if r.valid}) > 1


def _no_signal(groups: list[ScoredGroup], draws: int) -> str:
    values = sorted({r.value for s in groups for r in s.rewards if r.value is not None})
    shown = ", ".join(f"{v:g}" for v in values[:5]) or "none is valid"
    return (
        f"{draws} draws ({len(groups)} prompts) gave no group whose rewards differ (seen: "
        f"{shown}), so there is nothing to learn: the data are too easy or too hard for the model, "
        "or the reward cannot tell its answers apart. Look at the rewards (mmr1 reward), choose "
        "other data, begin with supervised training, or raise rollout.n or the temperature"
    )
