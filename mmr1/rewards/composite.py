"""The reward of a run: the weighted sum of named functions, with gates, a status, and metrics."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import pstdev

from mmr1.logs import report_fault
from mmr1.rewards.functions import Place, RewardFunction, make_reward_function
from mmr1.rewards.item import RewardItem, invalid
from mmr1.rewards.kind import RewardConfig
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.processes import ZygoteGoneError
from mmr1.rewards.scoring import ScoringConfig
from mmr1.types import Reward, Sample, Status, StepStats

MAX_NAMES = 64
"""Names of components that one function may have in a run; each is a metric of every step."""
_COMPONENT = re.compile(r"\w[\w ./:-]{0,63}")
_ALGEBRA = "math"
"""The built-in that asks the verifier about most answers that are not the gold's own text."""


def build_composite_reward(
    rewards: Mapping[str, RewardConfig],
    scoring: ScoringConfig | None = None,
    given: Mapping[str, RewardFunction] | None = None,
) -> CompositeReward:
    """Return the composite reward of a configuration.

    The verifier's processes start with the first answer that needs them, or with ``begin``.

    Args:
        rewards: The section ``rewards``.
        scoring: The section ``scoring``; None: its defaults.
        given: Loaded reward functions by name. They are used in place of those that the
            configuration names, because this package imports no torch.

    Raises:
        ValueError: A reward cannot be loaded or does not take a setting.
    """
    return CompositeReward(rewards, scoring or ScoringConfig(), given or {})


class CompositeReward:
    """Scores completions with the rewards of a configuration; close it when done.

    Attributes:
        rewards: Their sections by name.
    """

    def __init__(
        self,
        rewards: Mapping[str, RewardConfig],
        scoring: ScoringConfig,
        given: Mapping[str, RewardFunction],
    ) -> None:
        self.rewards = rewards
        self._counting = [name for name, each in rewards.items() if each.weight] or list(rewards)
        self._pool = Pool(
            scoring.processes, scoring.timeout_s, allow_weak=scoring.allow_weak_sandbox
        )
        self._beginning: threading.Thread | None = None
        self._functions: dict[str, RewardFunction] = {}
        self._names: dict[str, set[str]] = {name: set() for name in rewards}
        try:
            for name, section in rewards.items():
                place = Place(name, self._pool, self._functions, scoring)
                self._functions[name] = given.get(name) or make_reward_function(section, place)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Start computer algebra, if it is needed; does not wait.

        What goes wrong is raised when the first answer is scored.
        """
        used = {section.type for section in self.rewards.values()}
        if self._beginning is None and _ALGEBRA in used:
            self._beginning = threading.Thread(target=self._start_pool, name="verifier")
            self._beginning.start()

    def _start_pool(self) -> None:
        with suppress(ValueError, OSError, ZygoteGoneError):
            self._pool.start()

    def score(self, items: Sequence[RewardItem]) -> list[Reward]:
        """The reward of each item, in order.

        ``value`` is the weighted sum of the functions' values; ``components`` holds them
        unweighted. A function whose value is below its gate makes the functions after it 0
        without running them. If one function has no valid reward, the completion has none:
        ``value`` is None, and ``error`` names the function. A function that skipped the row is left
        out of the sum; without a weighted function that did not, there is no valid reward.
        """
        values: list[dict[str, Reward]] = [{} for _ in items]
        open_items = list(range(len(items)))
        for name, function in self._functions.items():
            rewards = function.score(
                [items[index] for index in open_items], [values[index] for index in open_items]
            )
            assert len(rewards) == len(open_items), (name, len(rewards))
            for index, reward in zip(open_items, rewards, strict=True):
                values[index][name] = self._with_known_names(name, reward)
            gate = self.rewards[name].gate
            if gate is not None:
                open_items = [i for i in open_items if _passes(values[i][name], gate)]
        return [self._combine(components) for components in values]

    def _with_known_names(self, function: str, reward: Reward) -> Reward:
        """The reward, or an error where its components have too many names, or odd ones."""
        known = self._names[function]
        if new := reward.components.keys() - known:
            odd = sorted(name for name in map(str, new) if not _COMPONENT.fullmatch(name))
            if odd:
                shown = ", ".join(f"{name!r:.66}" for name in odd[:3])
                rule = "letters, digits and _ . / : -, at most 64"
                return invalid(Status.ERROR, f"names of components ({rule}) cannot be {shown}")
            if len(known) + len(new) > MAX_NAMES:
                shown = ", ".join(sorted(new)[:3])
                count = f"more than {MAX_NAMES} names of components"
                return invalid(Status.ERROR, f"it returned {count}; refused are {shown}")
            known |= new
        return reward

    def check_gold(self, samples: Iterable[Sample]) -> list[tuple[Sample, str]]:
        """The samples whose gold answer a reward function cannot read, each with the reason."""
        items = [RewardItem("", sample) for sample in samples]
        problems: list[tuple[Sample, str]] = []
        for name, function in self._functions.items():
            for item, message in zip(items, function.check_gold(items), strict=True):
                if message is not None:
                    problems.append((item.sample, f"{name}: {message}"))
        return problems

    def columns(self, name: str) -> Sequence[str]:
        """Return the columns of a record that the function of this name reads."""
        return self._functions[name].columns

    def close(self) -> None:
        """End every process; safe to call twice."""
        if self._beginning is not None:
            self._beginning.join()
        for function in self._functions.values():
            function.close()
        self._pool.close()

    def __enter__(self) -> CompositeReward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _combine(self, rewards: dict[str, Reward]) -> Reward:
        components: dict[str, float | None] = {}
        total, status = 0.0, Status.OK
        for name, section in self.rewards.items():
            reward = rewards.get(name)  # None behind a closed gate
            components[name] = 0.0 if reward is None else reward.value
            if reward is not None and reward.status is Status.NO_ANSWER:
                status = Status.NO_ANSWER
            total += section.weight * (components[name] or 0.0)
        for name, reward in rewards.items():
            components.update({f"{name}/{sub}": value for sub, value in reward.components.items()})
            if not reward.valid and reward.status is not Status.SKIPPED:
                return Reward(None, reward.status, components, f"{name}: {reward.error}")
        if all(n in rewards and rewards[n].status is Status.SKIPPED for n in self._counting):
            return Reward(None, Status.SKIPPED, components, "every reward function skipped it")
        unread = tuple(n for n, r in rewards.items() if r.status is Status.UNREAD)
        if unread:
            status = Status.UNREAD if status is Status.OK else status
            return Reward(
                total, status, components, f"{unread[0]}: {rewards[unread[0]].error}", unread
            )
        return Reward(total, status, components)


def _passes(reward: Reward, gate: float) -> bool:
    return reward.value is None or reward.value >= gate


logger = logging.getLogger(__name__)


class TooManyInvalidRewardsError(RuntimeError):
    """More completions of a step than allowed have no valid reward."""


def reward_stats(rewards: Sequence[Reward]) -> StepStats:
    """The step's reward metrics.

    ``reward/mean`` is the mean of the sums, ``rewards/<name>/mean`` that of a reward function, over
    valid values only and absent where there are none; ``rewards/<name>/std`` is the standard
    deviation of the same values. ``reward/num_invalid`` counts the completions without a valid
    reward, ``rewards/<name>/num_invalid`` those of them to which a function gave none, and
    ``reward/num_<status>`` those of each status. ``reward/num_no_answer`` counts the completions
    without an answer, and ``rewards/<name>/num_unread`` those whose answer a function could not
    read.
    """
    stats: StepStats = {"reward/num_invalid": float(sum(not r.valid for r in rewards))}
    stats["reward/num_no_answer"] = float(sum(r.status is Status.NO_ANSWER for r in rewards))
    if totals := [r.value for r in rewards if r.value is not None]:
        stats["reward/mean"] = sum(totals) / len(totals)
    for name in dict.fromkeys(name for reward in rewards for name in reward.components):
        values = [r.components[name] for r in rewards if name in r.components]
        valid = [value for value in values if value is not None]
        if valid:
            stats[f"rewards/{name}/mean"] = sum(valid) / len(valid)
            if "/" not in name:
                stats[f"rewards/{name}/std"] = pstdev(valid)
        # Where a valid sum lacks a function, it was skipped.
        if missing := sum(not r.valid and r.components.get(name, 0.0) is None for r in rewards):
            stats[f"rewards/{name}/num_invalid"] = float(missing)
    for status, count in Counter(r.status for r in rewards if not r.valid).items():
        stats[f"reward/num_{status.value}"] = float(count)
    for name, count in Counter(name for reward in rewards for name in reward.unread).items():
        stats[f"rewards/{name}/num_unread"] = float(count)
    return stats


def report_invalid(
    rewards: Sequence[Reward], samples: Sequence[Sample], max_fraction: float
) -> None:
    """Report the rewards that are not valid, by their first function without one and by status.

    Raises:
        TooManyInvalidRewardsError: The share without one is above ``max_fraction``. Names the
            first reward function and sample.
    """
    first: dict[str, Reward] = {}
    counts: Counter[str] = Counter()
    for reward in rewards:
        if not reward.valid:
            told = (reward.error or "").partition(":")[0]
            name = told if told in reward.components else "reward"
            kind = f"reward/{name}/{reward.status}"
            counts[kind] += 1
            first.setdefault(kind, reward)
    for kind, count in counts.items():
        message = f"{count} of {len(rewards)} completions have no valid reward: {first[kind].error}"
        report_fault(logger, kind, message, count, level=logging.INFO)
    invalid = [(r, s) for r, s in zip(rewards, samples, strict=True) if not r.valid]
    if len(invalid) <= max_fraction * len(rewards):
        return
    reward, sample = invalid[0]
    raise TooManyInvalidRewardsError(
        f"{len(invalid)} of {len(rewards)} completions have no valid reward, more than "
        f"scoring.max_invalid_fraction={max_fraction:g} allows; the first is sample "
        f"'{sample.id}': {reward.error}"
    )
