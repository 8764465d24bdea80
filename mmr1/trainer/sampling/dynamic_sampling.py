"""Which rollouts a step learns from: all, or with DAPO's dynamic sampling those with a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
        kept: The groups that the update gets.
        everything: All groups; means of rewards are over these, or they would be biased.
        stats: How much was sampled; empty without dynamic sampling.
    """

    kept: list[ScoredGroup]
    everything: list[ScoredGroup]
    stats: StepStats


def sample_groups(sample_batch: SampleBatch, count: int, config: AlgorithmConfig) -> SampledGroups:
    """``count`` groups, each with a signal where ``algorithm.dynamic_sampling`` is on.

    Dynamic sampling (arXiv 2503.14476, section 3.2) samples again until enough groups have rewards
    that differ, ``oversample`` times as many prompts as are missing. After
    ``max_num_gen_batches`` the step
    goes on with the groups it has.

    Raises:
        NoSignalError: Not one group has a signal after ``max_num_gen_batches``.
    """
    if not config.dynamic_sampling:
        groups = sample_batch(count, 0)
        return SampledGroups(groups, groups, {})
    everything: list[ScoredGroup] = []
    kept: list[ScoredGroup] = []
    batches = 0
    while len(kept) < count and batches < config.max_num_gen_batches:
        new = sample_batch(math.ceil((count - len(kept)) * config.oversample), batches)
        everything += new
        kept += [group for group in new if has_signal(group)]
        batches += 1
    if not kept:
        raise NoSignalError(_no_signal(everything, batches))
    stats = {
        "sampling/gen_batches": float(batches),
        "sampling/no_signal": float(sum(not has_signal(group) for group in everything)),
        "sampling/surplus": float(max(0, len(kept) - count)),
        "sampling/extra_rollouts": float(
            sum(len(s.rewards) for s in everything) - sum(len(s.rewards) for s in kept[:count])
        ),
    }
    return SampledGroups(kept[:count], everything, stats)


def has_signal(scored: ScoredGroup) -> bool:
    """Do the valid rewards of the group differ?"""
    return len({r.value for r in scored.rewards if r.valid}) > 1


def _no_signal(groups: list[ScoredGroup], batches: int) -> str:
    values = sorted({r.value for s in groups for r in s.rewards if r.value is not None})
    shown = ", ".join(f"{v:g}" for v in values[:5]) or "none is valid"
    return (
        f"{batches} generation batches ({len(groups)} prompts) gave no group whose rewards differ "
        f"(seen: {shown}), so there is nothing to learn: the data are too easy or too hard for the "
        "model, "
        "or the reward cannot tell its answers apart. Look at the rewards (mmr1 reward), choose "
        "other data, begin with supervised training, or raise rollout.n or the temperature"
    )
