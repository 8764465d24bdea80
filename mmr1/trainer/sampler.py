"""The sampler: it draws prompts, has them sampled and scored, and keeps what is ahead of learning.

One queue of groups lies between sampling and learning. How deep it is (``max_off_policy_steps``),
and what new weights do to completions under way (``queue.at_new_weights``), is its pace. In step,
ahead and streaming are three values of it:

- 0, ``wait``: everything runs in the caller's thread.
- k, ``wait``: step s is sampled whole, with the weights after update ``s - 1 - k``. None is being
  sampled when a checkpoint is due, so that a resumed run has the same schedule, nor when a
  validation is, which needs the engine. Steps sampled ahead when a signal stops the run are lost.
- k, ``restart`` or ``continue``: groups are drawn as there is room, and learned from as they end.
  There is room for ``k + 1`` steps beyond the update whose weights the engine has.

So no token is older than k steps, or with a window of W groups that may pass the oldest
``k + ceil((W - 1) / P)``, P groups a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from threading import Condition
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mmr1.config import Config, ResampleConfig
from mmr1.config.rewards import weights_of
from mmr1.data.rows import kinds_of
from mmr1.rollout.protocol import Finished, prompt_seeds
from mmr1.trainer.runs.checkpoint import next_due
from mmr1.trainer.runs.step import PhaseTimer
from mmr1.trainer.sampling.dynamic_sampling import (
    NoSignalError,
    Selection,
    group_filter,
    no_signal,
)
from mmr1.trainer.sampling.open_groups import OpenGroups
from mmr1.trainer.sampling.other_views import view_stats
from mmr1.trainer.sampling.plan import ROLES, planner
from mmr1.trainer.sampling.views import check_changed
from mmr1.types import Completion, Prompt, Sample, ScoredGroup, StepStats

if TYPE_CHECKING:
    from mmr1.trainer.components import TrainerComponents
    from mmr1.trainer.models.policy import Policy, Weights

MOMENT_S = 0.05
"""An engine samples so long at most before it is given new prompts or weights."""


@dataclass(frozen=True)
class Batch:
    """The samples of a step.

    Attributes:
        groups: The groups that the update learns from.
        all_groups: All groups, also those without a signal. Logged means are over these; over
            ``groups`` they would be biased.
        stats: The metrics of dynamic sampling, replay and curriculum.
        seconds: Seconds of each phase.
        oldest_version: The update that gave the oldest weights which sampled a completion to learn
            from.
        state: Gives the state after this batch of what sampling moves on, as JSON values. When
            steps are sampled ahead, later ones move it on before this step has learned.
    """

    groups: list[ScoredGroup]
    all_groups: list[ScoredGroup]
    stats: StepStats
    seconds: Mapping[str, float]
    oldest_version: int
    state: Callable[[], Mapping[str, Any]]


@dataclass
class _Filling:
    """A step that is being sampled, or with a stream what lies between two batches."""

    step: int
    selection: Selection
    timer: PhaseTimer
    since: float = field(default_factory=time.monotonic)
    sampled_s: float = 0.0
    cancelled: int = 0
    dropped: list[ScoredGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _New:
    """New weights, which the engine is given after it has sampled a step; after 0: at once."""

    weights: Weights
    version: int
    after: int


class Sampler:
    """Samples and scores the batches of a run's steps.

    A context: when it ends without an error, the engine has the last weights. What fails in a
    thread of its own is raised by the next call that needs it. Nobody else may use the engine,
    except between :meth:`finish` and the next :meth:`sample`.
    """

    def __init__(self, config: Config, components: TrainerComponents) -> None:
        self._config, self._parts, self._engine = config, components, components.engine
        self._depth, self._queue = config.rollout.max_off_policy_steps, config.rollout.queue
        self._by_step = not config.rollout.streams
        self._size, self._resamples = config.data.train_batch_size, config.algorithm.resamples
        self._has_signal: Callable[[ScoredGroup], bool] = lambda _: True
        if self._resamples is not None:
            self._has_signal = group_filter(
                config.algorithm,
                components.algorithm.advantage.step_supervision,
                list(weights_of(config.rewards)),
            )
        keeps = self._resamples is not None and self._resamples.keep_surplus
        self._surplus = components.kept if keeps else None
        self._threads: list[ThreadPoolExecutor] = []
        self._changed = Condition()  # guards what follows
        kept, greedy = components.open_groups, components.algorithm.advantage.greedy_baseline
        self._groups = OpenGroups(_not_kept, planner(config, greedy)) if kept is None else kept
        self._tickets: dict[int, tuple[int, list[int]]] = {}  # of which group, of which completions
        self._unscored: list[int] = []
        self._weights: list[_New] = []
        self._first = self._step = 0  # the first step, and that which was taken last
        self._last = 0  # the last step that may be sampled
        self._loaded = 0  # the step that the engine's weights learned from
        self._taken = 0  # groups of the stream
        self._holds = False  # a validation is going to use the engine
        self._filling = self._fill(0)
        self._batches: dict[int, Batch] = {}
        self._dropped_in_turn = 0
        self._failure: BaseException | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            for thread in self._threads:
                thread.shutdown(wait=False, cancel_futures=True)

    # The caller's thread ------------------------------------------------------------------------

    def sample(self, number: int) -> Batch:
        """The batch of step ``number``; steps are taken in order.

        Raises:
            NoSignalError: Dynamic sampling found no group to learn from.
        """
        with self._changed:
            if self._first == 0:
                self._begin(number)
            self._step, self._holds, trainer = number, False, self._config.trainer
            due = min(next_due(trainer, number), trainer.next_validation(number))
            self._last = min(number + self._depth, due)
            self._changed.notify_all()
            if not self._by_step:
                return self._take(number)
            self._wait_for(lambda: number in self._batches)
            return self._batches.pop(number)

    def sync(self, policy: Policy) -> None:
        """Give the engine the policy's weights; on policy it has them on return."""
        # A copy: the next update changes the weights while the engine still samples.
        ahead = self._depth > 0
        weights = policy.weights(copy=True) if ahead else policy.weights()
        with self._changed:
            self._wait_for(lambda: self._by_step or not self._weights)  # each is loaded
            after = self._last if self._by_step else 0
            self._weights.append(_New(weights, policy.version, after))
            self._holds = self._config.trainer.validates(self._step)
            self._changed.notify_all()
            self._wait_for(lambda: ahead or not self._weights)

    def finish(self) -> None:
        """Wait until the engine has the last weights and nothing to sample."""
        with self._changed:
            self._wait_for(lambda: not self._busy and not self._unscored and not self._open)

    def _begin(self, first: int) -> None:
        """Start, with the groups that an interrupted run has left."""
        self._first = self._step = first
        self._loaded = first - 1
        self._filling = self._fill(first)
        self._submit([number for number, _ in self._groups])
        self._unscored = [i for i, g in self._groups if g.is_whole and g.scored is None]
        if self._depth:
            names = ("rollout",) if self._by_step else ("rollout", "reward")
            self._threads = [ThreadPoolExecutor(1, name) for name in names]
            if not self._by_step:
                self._in_thread(1, self._score)
            self._in_thread(0, self._work)

    def _take(self, number: int) -> Batch:
        """The oldest groups of the stream that have been scored."""
        timer, groups = PhaseTimer(f"step {number}"), list[ScoredGroup]()
        began, window = time.monotonic(), self._queue.window
        with timer("rollout"):
            while len(groups) < self._size:
                self._wait_for(lambda: self._groups.next(window) is not None)
                ready = self._groups.next(window)
                assert ready is not None
                groups.append(self._groups.remove(ready))
                self._taken += 1
        now, (filled, self._filling) = time.monotonic(), (self._filling, self._fill(number + 1))
        seconds = max(now - filled.since, 1e-9)
        self._parts.rewards.check([*groups, *filled.dropped])
        ahead = sum(group.scored is not None for _, group in self._groups)
        stats = {
            "rollout/trainer_idle": min(1.0, (now - began) / seconds),
            "rollout/engine_idle": max(0.0, 1 - filled.sampled_s / seconds),
            "rollout/cancelled_tokens": float(filled.cancelled),
            "rollout/groups_ahead": float(ahead),
        }
        if self._resamples is not None:
            completions = sum(len(s.rewards) for s in filled.dropped)
            stats["dynamic_sampling/frac_zero_std"] = float(len(filled.dropped))
            stats["dynamic_sampling/num_extra_completions"] = float(completions)
        stats |= self._staleness(groups)
        return self._batch(number, groups, [*groups, *filled.dropped], stats, timer)

    def _batch(
        self,
        step: int,
        groups: list[ScoredGroup],
        everything: list[ScoredGroup],
        stats: StepStats,
        timer: PhaseTimer,
    ) -> Batch:
        parts, views = self._parts, self._config.rollout.views
        if views is not None:
            strength = views.strength_at(step, self._config.trainer.steps)
            stats = {**stats, **view_stats(everything), "views/strength": strength}
        if parts.replay is not None:
            groups, replayed = parts.replay.fill(step, groups)
            stats = stats | replayed
        if parts.loader.curriculum is not None:
            stats = stats | parts.loader.curriculum.stats()
        oldest = min(c.policy_version for s in groups for c in s.group.completions)
        return Batch(groups, everything, stats, timer.phases, oldest, self._state())

    def _state(self) -> Callable[[], Mapping[str, Any]]:
        """A function that gives what sampling moves on; a stream's as it is when it is called."""
        kept = None if self._parts.kept is None else self._parts.kept.state_now()
        now = self._parts.loader.state_dict() if self._by_step else None

        def state() -> Mapping[str, Any]:
            of_kept = {} if kept is None else {"kept": kept()}
            if now is not None:
                return {"sampler": now, **of_kept}
            with self._changed:
                loader = self._parts.loader.state_dict()
                return {"sampler": loader, "open_groups": self._groups.state_dict(), **of_kept}

        return state

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if not self._threads:
            while not condition():
                self._turn()
            return
        self._changed.wait_for(lambda: condition() or self._failure is not None)
        if self._failure is not None and not condition():
            raise self._failure

    def _in_thread(self, thread: int, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()

        if not self._closed:
            self._threads[thread].submit(guarded)

    # The rollout thread; on policy the caller's -------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._busy)
                if self._closed:
                    return
            self._turn()

    def _turn(self) -> None:
        """Load weights if they may be, or draw prompts where there is room and sample a moment."""
        with self._changed:
            loads = bool(self._weights) and self._filling.step > self._weights[0].after
        if loads:
            self._load()
        elif self._is_filled:
            self._close()
        else:
            self._sample()

    @property
    def _busy(self) -> bool:
        return bool(self._weights or self._tickets or self._room or self._is_filled)

    @property
    def _open(self) -> bool:
        return any(group.scored is None for _, group in self._groups)

    @property
    def _may_fill(self) -> bool:
        """True if the step may be sampled now, with the weights that the engine has."""
        step = self._filling.step
        newer = bool(self._weights) and step > self._weights[0].after
        return self._by_step and 0 < step <= self._last and not newer and not self._groups

    @property
    def _is_filled(self) -> bool:
        return self._may_fill and self._filling.selection.prompts_needed() == 0

    @property
    def _room(self) -> int:
        """How many prompts may be drawn."""
        if self._by_step:
            return self._filling.selection.prompts_needed() if self._may_fill else 0
        if self._holds or self._first == 0:
            return 0
        before = self._first - 1
        places = (self._loaded - before + self._depth + 1) * self._size - self._taken
        to_come = (self._config.trainer.steps - before) * self._size - self._taken
        return max(0, min(places, to_come) - len(self._groups))

    def _load(self) -> None:
        began, new = time.monotonic(), self._weights[0]
        if self._queue.at_new_weights == "restart":
            cancelled = self._engine.cancel()
            with self._changed:
                self._filling.cancelled += cancelled
                again = sorted({number for number, _ in self._tickets.values()})
                self._tickets = {}
                self._submit(again)
        self._engine.load(new.weights, new.version)
        with self._changed:
            self._filling.sampled_s += time.monotonic() - began
            del self._weights[0]
            self._loaded += 1
            self._changed.notify_all()

    def _sample(self) -> None:
        began = time.monotonic()
        with self._phase("rollout"):
            with self._changed:
                while room := self._room:
                    self._draw(room)
            while self._tickets:
                ended = self._engine.poll(MOMENT_S)
                with self._changed:
                    for finished in ended:
                        self._put(finished)
                    self._changed.notify_all()
                if not self._by_step:
                    break
        self._filling.sampled_s += time.monotonic() - began
        if self._by_step:
            with self._phase("reward"):
                self._score()

    def _phase(self, name: str) -> Any:
        return self._filling.timer(name) if self._by_step else nullcontext()

    def _draw(self, room: int) -> None:
        config, parts, size = self._config, self._parts, self._size
        step, draw = self._filling.step, self._filling.selection.batches
        if not self._by_step:  # in the pieces, and with the seeds, of a run by steps
            step, draw = divmod(self._groups.drawn, size)
            step, room = step + 1, min(room, size - draw)
        prompts = list(map(parts.render, parts.loader.next(room)))
        seeds = prompt_seeds(prompts, config.seed, step, draw)
        # The next step's media are prepared while this one samples and learns.
        parts.loader.prefetch(size)
        self._submit(self._groups.add(step, prompts, seeds))

    def _submit(self, numbers: Sequence[int]) -> None:
        """Have what is missing of these groups sampled; what has one role is submitted together."""
        for role in ROLES:
            asked = [(i, *own) for i in numbers for own in self._groups[i].missing(role)]
            tickets = self._engine.submit([request for *_, request in asked])
            for ticket, (number, places, _) in zip(tickets, asked, strict=True):
                self._tickets[ticket] = number, places

    def _put(self, ended: Finished) -> None:
        number, places = self._tickets[ended.ticket]
        group = self._groups[number]
        group.ended[places[ended.index]] = ended
        if all(place in group.ended for place in places):
            del self._tickets[ended.ticket]
        if group.is_whole:
            self._unscored.append(number)
            if not self._by_step:
                self._in_thread(1, self._score)

    def _close(self) -> None:
        """Make the batch of a step that has its groups, and begin the next one."""
        filled = self._filling
        groups, stats = filled.selection.sampled()
        # Where the surplus of the step before was enough, nothing was drawn to take means of.
        everything = filled.selection.all_groups or groups
        if self._resamples is None:
            stats = {}
        if self._surplus is not None:
            self._surplus.keep(filled.selection.surplus)
        batch = self._batch(filled.step, groups, everything, stats, filled.timer)
        with self._changed:
            self._batches[filled.step] = batch
            self._filling = self._fill(filled.step + 1)
            self._changed.notify_all()

    def _fill(self, step: int) -> _Filling:
        earlier = [] if self._surplus is None else self._surplus.groups
        resamples = self._resamples or ResampleConfig()
        selection = Selection(self._size, resamples, self._has_signal, earlier)
        return _Filling(step, selection, PhaseTimer(f"step {step}"))

    # The reward thread; where steps are sampled whole, the rollout's ----------------------------

    def _score(self) -> None:
        """Score all whole groups that have come meanwhile, together."""
        parts, by_step = self._parts, self._by_step
        with self._changed:
            # In the order of the prompts, so that a step does not depend on who ended first.
            numbers, self._unscored = sorted(self._unscored) if by_step else self._unscored, []
            groups = [self._groups[number] for number in numbers]
        if not groups:
            return
        rolled = [group.group for group in groups]
        beside = {i: texts for i, group in enumerate(groups) if (texts := group.beside)}
        scored = parts.rewards.score(rolled, beside, check=by_step)  # a stream's with its step
        if baselines := [g for group in groups if (g := group.greedy) is not None]:
            of_greedy = parts.rewards.score(baselines, check=by_step)
            scored = [
                replace(s, greedy=b.rewards[0]) for s, b in zip(scored, of_greedy, strict=True)
            ]
        if parts.steps is not None:
            scored = parts.steps.score(scored)
        with self._changed:
            if parts.loader.curriculum is not None:
                parts.loader.curriculum.learn(scored)
            for number, own in zip(numbers, scored, strict=True):
                self._groups[number].scored = own
            if by_step:
                self._filling.selection.add([self._groups.remove(i) for i in numbers])
            else:
                self._drop_without_signal(numbers)
            self._changed.notify_all()

    def _drop_without_signal(self, numbers: Iterable[int]) -> None:
        """Give the place of such a group of a stream back at once, with dynamic sampling."""
        if self._resamples is None:
            return
        for number in numbers:
            scored = self._groups[number].scored
            assert scored is not None
            if self._has_signal(scored):
                self._dropped_in_turn = 0
                continue
            dropped = self._filling.dropped
            dropped.append(self._groups.remove(number))
            self._dropped_in_turn += 1
            batches = self._resamples.max_num_gen_batches
            if self._dropped_in_turn >= batches * self._size:
                raise NoSignalError(no_signal(dropped, batches, self._resamples.range))

    def _staleness(self, groups: Sequence[ScoredGroup]) -> StepStats:
        """How old the weights were that sampled what is learned from, in updates of the policy."""
        now, queue = self._parts.policy.version, self._config.rollout.queue
        completions = [c for s in groups for c in s.group.completions]
        spans = [
            (now - version, tokens)
            for c in completions
            for version, tokens in c.versions or ((c.policy_version, len(c.token_ids)),)
        ]
        oldest = self._config.max_staleness * self._config.updates
        assert max(age for age, _ in spans) <= oldest, (max(spans), oldest)
        count = sum(tokens for _, tokens in spans)
        stats = {
            "rollout/staleness_mean": sum(age * tokens for age, tokens in spans) / max(1, count),
            "rollout/frac_mixed_policy": fmean(bool(c.versions) for c in completions),
        }
        if queue.kv_cache == "recompute":
            stats["rollout/recomputed_tokens"] = float(sum(map(_recomputed, completions)))
        return stats


def _recomputed(completion: Completion) -> int:
    """How often its tokens' keys and values were computed again, as the weights changed."""
    computed = total = 0
    for _, tokens in completion.versions:
        total += computed
        computed += tokens
    return total


def _not_kept(source: str | None, name: str) -> Prompt:
    raise AssertionError("no group is under way when a checkpoint is due")


def refuse_without_media(config: Config, sources: Iterable[Sequence[Sample]]) -> None:
    """Raises ValueError if no sample has the media that ``config`` asks to show in another way."""
    perceives, measures = config.algorithm.perception, config.trainer.vision_use_steps
    views = config.rollout.views
    if views is None and perceives is None and measures is None:
        return
    of_samples = [kinds for samples in sources for kinds in kinds_of(samples)]
    if views is not None:
        check_changed("rollout.views", views.view, "data.train", of_samples)
    kinds = {kind for own in of_samples for kind in own}
    if not kinds and perceives is not None:
        raise ValueError(
            "algorithm.perception compares log-probs with those under masked pictures and "
            "data.train has none; leave it out, or use other data"
        )
    if not kinds and measures is not None:
        raise ValueError(
            "trainer.vision_use_steps measures whether completions depend on pictures and "
            "data.train has none; leave it out, or use other data"
        )
