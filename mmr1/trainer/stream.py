"""A stream of scored groups: an engine that always has something to sample, beside the trainer.

Three threads share the open groups under one lock. The rollout thread draws prompts as there is
room for their groups, has the engine sample on, and gives it new weights between two moments of
that. The reward thread scores groups as their last completions end. The trainer's thread takes a
batch of groups, and waits only while there is none.

There is room for ``(S + 1) * P`` groups, P a step's and S ``rollout.max_off_policy_steps``. A group
gives its place back when the engine has the weights that learned from it. So none waits for more
than S steps, or with a window W of groups that may pass it ``S + ceil((W - 1) / P)``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from threading import Condition
from typing import Any

from mmr1.config import Config
from mmr1.rollout.build import ContinuousEngine
from mmr1.rollout.engine import PreparedRequest, Request, requests_for
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.policy import Weights
from mmr1.trainer.sampling.dynamic_sampling import NoSignalError, group_filter, no_signal
from mmr1.types import Completion, ScoredGroup, StepStats

MOMENT_S = 0.05
"""The engine samples so long at most before it is given new prompts or weights."""


@dataclass
class _Meter:
    """What is counted between two batches."""

    since: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0
    sampled_s: float = 0.0
    cancelled: int = 0
    dropped: list[ScoredGroup] = field(default_factory=list)

    def stats(self) -> StepStats:
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {
            "rollout/trainer_idle": min(1.0, self.waited_s / seconds),
            "rollout/engine_idle": max(0.0, 1 - self.sampled_s / seconds),
            "rollout/cancelled_tokens": float(self.cancelled),
        }


@dataclass(frozen=True, slots=True)
class _New:
    """New weights.

    Attributes:
        learned: The groups that they learned from, which give their places back.
    """

    weights: Weights
    version: int
    learned: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The groups of a step.

    Attributes:
        groups: Those to learn from.
        dropped: Those without a signal, with dynamic sampling.
        stats: Metrics.
    """

    groups: list[ScoredGroup]
    dropped: list[ScoredGroup]
    stats: StepStats


class Stream:
    """Samples and scores groups until it is closed, from the first :meth:`take` on.

    What fails in a thread of its own is raised by the next call.

    Args:
        engine: Nobody else may use it, except between :meth:`drain` and the next :meth:`take`.
    """

    def __init__(
        self, config: Config, components: TrainerComponents, engine: ContinuousEngine
    ) -> None:
        assert config.rollout.streaming is not None
        assert components.open_groups is not None
        self._config, self._components, self._engine = config, components, engine
        self._streaming, self._groups = config.rollout.streaming, components.open_groups
        self._size, self._resamples = config.data.train_batch_size, config.algorithm.resamples
        self._has_signal = group_filter(
            config.algorithm,
            components.algorithm.advantage.step_supervision,
            list(config.rewards.weights),
        )
        self._threads = ThreadPoolExecutor(1, "rollout"), ThreadPoolExecutor(1, "reward")
        self._changed = Condition()  # guards what follows
        self._unsent: dict[int, Request] = {}  # single completions, by n * group + index
        self._under_way: dict[int, Request] = {}  # likewise, those that the engine has
        self._unscored: list[int] = []  # whole groups
        self._weights: _New | None = None  # for the engine
        self._step = 0
        self._to_come = 0  # groups that the run is still going to take
        self._learning = 0  # groups taken, until the engine has the weights that learned from them
        self._holds = False  # no prompt is drawn: a validation is going to use the engine
        self._meter, self._dropped_in_turn = _Meter(), 0
        self._failure: BaseException | None = None
        self._closed = False

    def take(self, step: int) -> Taken:
        """The groups of step ``step``; steps are taken in order.

        Raises:
            NoSignalError: Dynamic sampling found no group to learn from.
        """
        if self._step == 0:
            self._begin(step)
        groups, began = list[ScoredGroup](), time.monotonic()
        with self._changed:
            self._step, self._holds = step, False
            self._changed.notify_all()
            while len(groups) < self._size:
                self._wait_for(lambda: self._groups.next(self._streaming.window) is not None)
                number = self._groups.next(self._streaming.window)
                assert number is not None
                groups.append(self._groups.remove(number))
                self._learning += 1
                self._to_come -= 1
            meter, self._meter = self._meter, _Meter()
            ahead = sum(group.scored is not None for _, group in self._groups)
            curriculum = self._components.loader.curriculum
            of_curriculum = {} if curriculum is None else curriculum.stats()
        meter.waited_s += time.monotonic() - began
        self._components.rewards.check([*groups, *meter.dropped])
        stats = meter.stats() | of_curriculum | {"rollout/groups_ahead": float(ahead)}
        if self._resamples is not None:
            completions = sum(len(s.rewards) for s in meter.dropped)
            stats["sampling/no_signal"] = float(len(meter.dropped))
            stats["sampling/extra_rollouts"] = float(completions)
        return Taken(groups, meter.dropped, stats | self._staleness(groups))

    def load(self, weights: Weights, version: int) -> None:
        """Give the engine new weights, those that learned from the groups taken last.

        Args:
            weights: They must stay as they are while the trainer learns.
        """
        with self._changed:
            self._wait_for(lambda: self._weights is None)  # every version is loaded
            self._weights = _New(weights, version, self._learning)
            self._holds = self._config.trainer.validates(self._step)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until the engine has the last weights, and all groups are sampled and scored."""
        with self._changed:
            self._wait_for(
                lambda: (
                    self._weights is None
                    and self._room == 0
                    and all(group.scored is not None for _, group in self._groups)
                )
            )

    def state(self) -> dict[str, Any]:
        """What a resumed run continues from, as JSON values: the loader's state and the groups."""
        with self._changed:
            return {
                "sampler": self._components.loader.state_dict(),
                "open_groups": self._groups.state_dict(),
            }

    def close(self) -> None:
        """End the threads; does not wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, step: int) -> None:
        """Start the threads, with the groups that an interrupted run has left."""
        for number, group in self._groups:
            self._unsent |= self._numbered(number, group.unfinished)
            if group.is_whole and group.scored is None:
                self._unscored.append(number)
        steps = self._config.trainer.steps - step + 1
        self._step, self._to_come = step, steps * self._config.data.train_batch_size
        self._submit(1, self._score)
        self._submit(0, self._sample)

    def _submit(self, thread: int, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()

        if not self._closed:
            self._threads[thread].submit(guarded)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failure is not None or condition())
        if self._failure is not None:
            raise self._failure

    # The rollout thread -------------------------------------------------------------------------

    def _sample(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._closed
                        or self._weights is not None
                        or bool(self._unsent or self._under_way or self._room)
                    )
                )
                if self._closed:
                    return
                weights = self._weights
            if weights is not None:
                self._load(weights)
            with self._changed:
                self._draw()
                sent, self._unsent = self._unsent, {}
                self._under_way |= sent
            if self._under_way:
                self._advance(sent)

    @property
    def _room(self) -> int:
        """How many prompts may be drawn."""
        if self._holds:
            return 0
        places = (self._config.rollout.max_off_policy_steps + 1) * self._size - self._learning
        return max(0, min(places, self._to_come) - len(self._groups))

    def _draw(self) -> None:
        loader, groups = self._components.loader, self._groups
        while room := self._room:
            # In the pieces, and with the seeds, of a run that samples step after step.
            step, drawn = divmod(groups.drawn, self._size)
            samples = loader.next(min(room, self._size - drawn))
            prompts = [self._components.render(sample) for sample in samples]
            n, seed = self._config.rollout.n, self._config.seed
            for number in groups.add(requests_for(prompts, n, seed, step + 1, drawn)):
                self._unsent |= self._numbered(number, groups[number].unfinished)
            loader.prefetch(self._size)

    def _load(self, new: _New) -> None:
        began = time.monotonic()
        if not self._streaming.partial_rollout:
            cancelled = self._engine.abandon()
            with self._changed:
                self._meter.cancelled += cancelled
                self._unsent, self._under_way = self._under_way | self._unsent, {}
        self._engine.load_weights(new.weights, new.version)
        with self._changed:
            self._meter.sampled_s += time.monotonic() - began
            self._weights = None
            self._learning -= new.learned
            self._changed.notify_all()

    def _advance(self, requests: dict[int, Request]) -> None:
        media, began = self._components.media, time.monotonic()
        prepared = {
            number: PreparedRequest(request, tuple(media[m] for m in request.prompt.media))
            for number, request in requests.items()
        }
        ended = self._engine.advance(prepared, self._config.rollout.sampling, MOMENT_S)
        with self._changed:
            self._meter.sampled_s += time.monotonic() - began
            for number, completion in ended.items():
                del self._under_way[number]
                self._finish(number, completion)
            self._changed.notify_all()

    def _finish(self, number: int, completion: Completion) -> None:
        of_group, index = divmod(number, self._config.rollout.n)
        group = self._groups[of_group]
        group.completions[index] = completion
        if group.is_whole:
            self._unscored.append(of_group)
            self._submit(1, self._score)

    def _numbered(self, number: int, requests: dict[int, Request]) -> dict[int, Request]:
        first = self._config.rollout.n * number
        return {first + index: request for index, request in requests.items()}

    # The reward thread --------------------------------------------------------------------------

    def _score(self) -> None:
        """Score all whole groups that have come meanwhile, together."""
        with self._changed:
            numbers, self._unscored = self._unscored, []
            groups = [self._groups[number].group for number in numbers]
        if not groups:
            return
        components = self._components
        scored = components.rewards.score(groups, check=False)
        if components.steps is not None:
            scored = components.steps.score(scored)
        with self._changed:
            if components.loader.curriculum is not None:
                components.loader.curriculum.learn(scored)
            for number, group in zip(numbers, scored, strict=True):
                self._groups[number].scored = group
                self._drop_without_signal(number)
            self._changed.notify_all()

    def _drop_without_signal(self, number: int) -> None:
        """With dynamic sampling such a group gives its place back at once."""
        if self._resamples is None:
            return
        scored = self._groups[number].scored
        assert scored is not None
        if self._has_signal(scored):
            self._dropped_in_turn = 0
            return
        self._meter.dropped.append(self._groups.remove(number))
        self._dropped_in_turn += 1
        batches = self._resamples.max_num_gen_batches
        if self._dropped_in_turn >= batches * self._size:
            raise NoSignalError(no_signal(self._meter.dropped, batches, self._resamples.range))

    def _staleness(self, groups: Sequence[ScoredGroup]) -> StepStats:
        """How old the weights were that sampled what is learned from.

        Ages are in updates of the policy, as ``rollout/staleness``, the greatest, is.
        """
        now = self._components.policy.version
        completions = [c for s in groups for c in s.group.completions]
        spans = [
            (now - version, tokens)
            for c in completions
            for version, tokens in c.versions or ((c.policy_version, len(c.token_ids)),)
        ]
        oldest = self._config.max_staleness * self._config.updates
        assert max(age for age, _ in spans) <= oldest, (max(spans), oldest)
        count = sum(tokens for _, tokens in spans)
        return {
            "rollout/staleness_mean": sum(age * tokens for age, tokens in spans) / max(1, count),
            "rollout/mixed_versions": fmean(bool(c.versions) for c in completions),
            **(
                {"rollout/recomputed_tokens": float(sum(map(_recomputed, completions)))}
                if self._streaming.kv_cache == "recompute"
                else {}
            ),
        }


def _recomputed(completion: Completion) -> int:
    """How often its tokens' keys and values were computed again, as the weights changed."""
    computed = total = 0
    for _, tokens in completion.versions:
        total += computed
        computed += tokens
    return total
