"""The groups that a step learns from: all, or with DAPO's dynamic sampling those with a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from mmr1.config import AlgorithmConfig
from mmr1.types import ScoredGroup, StepStats

SampleBatch = Callable[[int, int], list[ScoredGroup]]
"""``(prompts, number of the batch in this step) -> scored groups`` of the next prompts."""


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


def sample_groups(
    sample_batch: SampleBatch,
    count: int,
    config: AlgorithmConfig,
    step_supervision: bool = False,
    functions: Sequence[str] = (),
) -> SampledGroups:
    """``count`` groups; with ``algorithm.dynamic_sampling`` each of them has a signal.

    Which groups have one is for :func:`group_filter` to say. Dynamic sampling (arXiv 2503.14476,
    section 3.2) samples again until there are ``count`` such groups; each time it takes
    ``oversample`` times as many prompts as groups are missing. After ``max_num_gen_batches`` the
    step uses the groups it has.

    Raises:
        NoSignalError: Not one group has a signal after ``max_num_gen_batches``.
    """
    if not config.dynamic_sampling:
        all_groups = sample_batch(count, 0)
        return SampledGroups(all_groups, all_groups, {})
    has_signal = group_filter(config, step_supervision, functions)
    groups: list[ScoredGroup] = []
    all_groups = []
    batches = 0
    while len(groups) < count and batches < config.max_num_gen_batches:
        new = sample_batch(math.ceil((count - len(groups)) * config.oversample), batches)
        all_groups += new
        groups += [group for group in new if has_signal(group)]
        batches += 1
    if not groups:
        raise NoSignalError(_no_signal(all_groups, batches, config))
    stats = {
        "sampling/gen_batches": float(batches),
        "sampling/no_signal": float(sum(not has_signal(group) for group in all_groups)),
        "sampling/surplus": float(max(0, len(groups) - count)),
        "sampling/extra_rollouts": float(
            sum(len(s.rewards) for s in all_groups) - sum(len(s.rewards) for s in groups[:count])
        ),
    }
    return SampledGroups(groups[:count], all_groups, stats)


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
