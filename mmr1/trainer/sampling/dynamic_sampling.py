"""The groups that a step learns from: all, or with DAPO's dynamic sampling those with a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mmr1.config import AlgorithmConfig, RangeConfig, ResampleConfig
from mmr1.types import ScoredGroup, StepStats


class NoSignalError(RuntimeError):
    """None of the groups of a step has rewards that differ; there is nothing to learn from."""


@dataclass
class Selection:
    """The groups of a step with ``algorithm.filter_groups.type: resample``, while it is sampled.

    Each of them has a signal (arXiv 2503.14476, section 3.2): prompts are needed until there are
    ``count`` such groups, each time ``gen_batch_size``, or as many as groups are missing. After
    ``max_num_gen_batches`` the step uses the groups it has.

    Attributes:
        has_signal: See :func:`group_filter`.
        earlier: The surplus of the step before, with which ``groups`` begin.
        batches: Generation batches so far.
    """

    count: int
    resamples: ResampleConfig
    has_signal: Callable[[ScoredGroup], bool]
    earlier: Sequence[ScoredGroup] = ()
    all_groups: list[ScoredGroup] = field(default_factory=list)
    batches: int = 0

    def __post_init__(self) -> None:
        self.groups = list(self.earlier)

    def prompts_needed(self) -> int:
        """The number of prompts to sample next; 0 when the step has its groups."""
        missing = self.count - len(self.groups)
        if missing <= 0 or self.batches == self.resamples.max_num_gen_batches:
            return 0
        return self.resamples.gen_batch_size or missing

    def add(self, scored: Sequence[ScoredGroup]) -> None:
        """Take one generation batch."""
        self.all_groups += scored
        self.groups += [group for group in scored if self.has_signal(group)]
        self.batches += 1

    @property
    def surplus(self) -> list[ScoredGroup]:
        """The groups with a signal beyond those of the step."""
        return self.groups[self.count :]

    def sampled(self) -> tuple[list[ScoredGroup], StepStats]:
        """The step's groups, and the ``sampling/`` metrics.

        Raises:
            NoSignalError: If no group has a signal after ``max_num_gen_batches``.
        """
        if not self.groups:
            raise NoSignalError(no_signal(self.all_groups, self.batches, self.resamples.range))
        groups = self.groups[: self.count]
        kept = self.surplus if self.resamples.keep_surplus else []
        drawn, earlier, learned, later = (
            sum(len(s.rewards) for s in gs) for gs in (self.all_groups, self.earlier, groups, kept)
        )
        without = len(self.all_groups) + len(self.earlier) - len(self.groups)
        return groups, {
            "dynamic_sampling/num_gen_batches": float(self.batches),
            "dynamic_sampling/frac_zero_std": float(without),
            "dynamic_sampling/num_surplus_groups": float(len(self.surplus)),
            "dynamic_sampling/num_extra_completions": float(drawn + earlier - learned - later),
        }


def group_filter(
    config: AlgorithmConfig, step_supervision: bool = False, functions: Sequence[str] = ()
) -> Callable[[ScoredGroup], bool]:
    """A function that tells whether a group has a signal to learn from.

    With ``algorithm.filter_groups.range`` it is if the mean of its ``metric`` lies ``between`` its
    two numbers, neither included; with 0, 1 and a function that is 1 for right answers that is
    DAPO's equation 11. Otherwise it is if its rewards differ; with
    ``step_supervision`` those of its steps, with GDPO those of one of the reward ``functions``.
    """
    within = None if config.resamples is None else config.resamples.range
    if within is not None:
        return lambda scored: _is_between(scored, within)
    if config.advantage.per_function:
        return lambda scored: components_differ(scored, functions)
    return steps_differ if step_supervision else rewards_differ


def _is_between(scored: ScoredGroup, within: RangeConfig) -> bool:
    whole, (low, high) = within.metric == "overall", within.between
    valid = [r for r in scored.rewards if r.valid]
    values = [r.value if whole else r.components.get(within.metric) for r in valid]
    known = [value for value in values if value is not None]
    return bool(known) and low < fmean(known) < high


def rewards_differ(scored: ScoredGroup) -> bool:
    """True if the valid rewards of the group differ."""
    return len({r.value for r in scored.rewards if r.valid}) > 1


def components_differ(scored: ScoredGroup, functions: Iterable[str]) -> bool:
    """True if the values of one of these reward functions differ within the group."""
    rows = [r.components for r in scored.rewards if r.valid]
    return any(len({row[name] for row in rows}) > 1 for name in functions)


def steps_differ(scored: ScoredGroup) -> bool:
    """True if the rewards of the steps of the group's completions differ."""
    assert scored.steps is not None, "the loop asks the step reward function"
    return len({reward for steps in scored.steps for _, reward in steps}) > 1


def no_signal(groups: list[ScoredGroup], batches: int, within: RangeConfig | None) -> str:
    values = sorted({r.value for s in groups for r in s.rewards if r.value is not None})
    value_list = ", ".join(f"{v:g}" for v in values[:5]) or "none is valid"
    found = "gave no group whose rewards differ"
    if within is not None:
        low, high = within.between
        found = (
            f"gave no group whose mean of algorithm.filter_groups.range.metric={within.metric} "
            f"lies between {low:g} and {high:g}"
        )
    return (
        f"{batches} generation batches ({len(groups)} prompts) {found} "
        f"(rewards: {value_list}), so there is nothing to learn. The data are too easy or too hard "
        "for the model, or the reward cannot tell its answers apart. Look at the rewards (mmr1 "
        "reward), choose other data, start with supervised training, or raise rollout.n or the "
        "temperature"
    )
