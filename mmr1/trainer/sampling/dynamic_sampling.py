"""The groups that a step learns from: all, or with DAPO's dynamic sampling those with a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mmr1.config import AlgorithmConfig
from mmr1.types import ScoredGroup, StepStats


class NoSignalError(RuntimeError):
    """No group of a step has rewards that differ; there is nothing to learn from."""


@dataclass(frozen=True, slots=True)
class SampledGroups:
    """What a step sampled.

    Attributes:
        groups: The groups that the update learns from.
        all_groups: Also those without a signal. Logged means are over these; over ``groups`` they
            would be biased.
        stats: The ``sampling/`` metrics of dynamic sampling, and those of replay and curriculum.
    """

    groups: list[ScoredGroup]
    all_groups: list[ScoredGroup]
    stats: StepStats


@dataclass
class Selection:
    """The groups of a step while it is being sampled.

    Without ``algorithm.dynamic_sampling`` they are those of ``count`` prompts. With it (arXiv
    2503.14476, section 3.2) each of them has a signal: prompts are needed until there are ``count``
    such groups, each time ``oversample`` times as many as groups are missing. After
    ``max_num_gen_batches`` the step uses the groups it has.

    Attributes:
        has_signal: See :func:`group_filter`.
        batches: Generation batches so far.
    """

    count: int
    config: AlgorithmConfig
    has_signal: Callable[[ScoredGroup], bool]
    groups: list[ScoredGroup] = field(default_factory=list)
    all_groups: list[ScoredGroup] = field(default_factory=list)
    batches: int = 0

    def prompts_needed(self) -> int:
        """The number of prompts to sample next; 0 when the step has its groups."""
        if not self.config.dynamic_sampling:
            return 0 if self.batches else self.count
        missing = self.count - len(self.groups)
        if missing <= 0 or self.batches == self.config.max_num_gen_batches:
            return 0
        return math.ceil(missing * self.config.oversample)

    def add(self, scored: Sequence[ScoredGroup]) -> None:
        """Take one generation batch."""
        filtering = self.config.dynamic_sampling
        self.all_groups += scored
        self.groups += [group for group in scored if not filtering or self.has_signal(group)]
        self.batches += 1

    def sampled(self) -> SampledGroups:
        """What the step has sampled.

        Raises:
            NoSignalError: Not one group has a signal after ``max_num_gen_batches``.
        """
        if not self.config.dynamic_sampling:
            return SampledGroups(self.groups, self.all_groups, {})
        if not self.groups:
            raise NoSignalError(_no_signal(self.all_groups, self.batches, self.config))
        groups = self.groups[: self.count]
        sampled, learned = (sum(len(s.rewards) for s in gs) for gs in (self.all_groups, groups))
        stats = {
            "sampling/gen_batches": float(self.batches),
            "sampling/no_signal": float(len(self.all_groups) - len(self.groups)),
            "sampling/surplus": float(len(self.groups) - len(groups)),
            "sampling/extra_rollouts": float(sampled - learned),
        }
        return SampledGroups(groups, self.all_groups, stats)


def group_filter(
    config: AlgorithmConfig, step_supervision: bool = False, functions: Sequence[str] = ()
) -> Callable[[ScoredGroup], bool]:
    """Is a group one to learn from?

    With ``algorithm.filter_key`` it is if the mean of that reward function lies between
    ``filter_low`` and ``filter_high``, neither included; with 0, 1 and a function that is 1 for
    right answers that is DAPO's equation 11. Otherwise it is if its rewards differ; with
    ``step_supervision`` those of its steps, with GDPO those of one of the reward ``functions``.
    """
    if config.filter_key is not None:
        return lambda scored: _is_between(scored, config)
    if config.adv_estimator == "gdpo":
        return lambda scored: components_differ(scored, functions)
    return steps_differ if step_supervision else rewards_differ


def _is_between(scored: ScoredGroup, config: AlgorithmConfig) -> bool:
    assert config.filter_key is not None
    whole = config.filter_key == "overall"
    valid = [r for r in scored.rewards if r.valid]
    values = [r.value if whole else r.components.get(config.filter_key) for r in valid]
    known = [value for value in values if value is not None]
    return bool(known) and config.filter_low < fmean(known) < config.filter_high


def rewards_differ(scored: ScoredGroup) -> bool:
    """Do the valid rewards of the group differ?"""
    return len({r.value for r in scored.rewards if r.valid}) > 1


def components_differ(scored: ScoredGroup, functions: Iterable[str]) -> bool:
    """Do the values of one of these reward functions differ within the group?"""
    rows = [r.components for r in scored.rewards if r.valid]
    return any(len({row[name] for row in rows}) > 1 for name in functions)


def steps_differ(scored: ScoredGroup) -> bool:
    """Do the rewards of the steps of the group's completions differ?"""
    assert scored.steps is not None, "the loop asks the step reward function"
    return len({reward for steps in scored.steps for _, reward in steps}) > 1


def _no_signal(groups: list[ScoredGroup], batches: int, config: AlgorithmConfig) -> str:
    values = sorted({r.value for s in groups for r in s.rewards if r.value is not None})
    value_list = ", ".join(f"{v:g}" for v in values[:5]) or "none is valid"
    found = "gave no group whose rewards differ"
    if config.filter_key is not None:
        found = (
            f"gave no group whose mean of algorithm.filter_key={config.filter_key} lies between "
            f"{config.filter_low:g} and {config.filter_high:g}"
        )
    return (
        f"{batches} generation batches ({len(groups)} prompts) {found} "
        f"(rewards: {value_list}), so there is nothing to learn. The data are too easy or too hard "
        "for the model, or the reward cannot tell its answers apart. Look at the rewards (mmr1 "
        "reward), choose other data, start with supervised training, or raise rollout.n or the "
        "temperature"
    )
