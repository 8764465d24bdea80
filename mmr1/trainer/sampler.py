"""The samplers: they draw prompts, generate, score and filter; what each step learns from.

With ``rollout.max_off_policy_steps`` steps are sampled ahead, by one thread that works through one
queue of steps and weight updates, while the trainer learns. So the weights that sample a step do
not depend on timing: step k is sampled with the weights after update
``k - 1 - rollout.max_off_policy_steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from mmr1.config import Config, ResampleConfig
from mmr1.data.rows import kinds_of
from mmr1.rollout.build import ContinuousEngine
from mmr1.rollout.engine import Request, RolloutEngine, requests_for
from mmr1.trainer.algorithm import Algorithm
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.runs.checkpoint import next_due
from mmr1.trainer.runs.step import PhaseTimer
from mmr1.trainer.sampling.dynamic_sampling import Selection, group_filter
from mmr1.trainer.sampling.other_views import sample_beside, sample_with_view, view_stats
from mmr1.trainer.sampling.views import check_changed
from mmr1.trainer.stream import Stream
from mmr1.types import RolloutGroup, Sample, ScoredGroup, StepStats


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a step.

    Attributes:
        groups: The groups that the update learns from.
        all_groups: Also those without a signal. Logged means are over these; over ``groups`` they
            would be biased.
        stats: The metrics of dynamic sampling, replay and curriculum.
        seconds: Of each phase.
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


class Sampler:
    """Samples and scores the batches of a run's steps, with the weights that the engine has.

    One that samples ahead of the update is a :class:`SamplerAhead`; ``open_sampler`` chooses.
    """

    def __init__(self, config: Config, components: TrainerComponents) -> None:
        self._config, self._components = config, components
        self._sampling, self._resamples = config.rollout.sampling, config.algorithm.resamples
        self._views = config.rollout.views

    def sample(self, number: int) -> Batch:
        """The batch of step ``number``; steps are taken in order.

        Raises:
            NoSignalError: Dynamic sampling found no group to learn from.
        """
        components, resamples = self._components, self._resamples
        timer, stats = PhaseTimer(f"step {number}"), dict[str, float]()
        if resamples is None:
            groups = self._sample_and_score(number, self._config.data.train_batch_size, 0, timer)
            all_groups = groups
        else:
            groups, all_groups, stats = self._resample(number, resamples, timer)
        if (views := self._views) is not None:
            stats = {**stats, **view_stats(all_groups)}
            stats["views/strength"] = views.strength_at(number, self._config.trainer.steps)
        if components.replay is not None:
            groups, replayed = components.replay.fill(number, groups)
            stats |= replayed
        if components.loader.curriculum is not None:
            stats |= components.loader.curriculum.stats()
        oldest = min(c.policy_version for s in groups for c in s.group.completions)
        state, kept = components.loader.state_dict(), None
        if components.kept is not None:
            kept = components.kept.state_now()
        return Batch(
            groups,
            all_groups,
            stats,
            timer.phases,
            oldest,
            lambda: {"sampler": state} if kept is None else {"sampler": state, "kept": kept()},
        )

    def sync(self, policy: Policy) -> None:
        """Load the policy's weights into the engine, for what is sampled after this."""
        self._components.rollout.load_weights(policy.weights(), policy.version)

    def finish(self) -> None:
        """Do nothing: the engine has the last weights."""

    def _resample(
        self, number: int, resamples: ResampleConfig, timer: PhaseTimer
    ) -> tuple[list[ScoredGroup], list[ScoredGroup], StepStats]:
        """The groups that the step learns from, all that it sampled, and metrics."""
        config, kept = self._config, self._components.kept
        has_signal = group_filter(
            config.algorithm,
            self._components.algorithm.advantage.step_supervision,
            list(config.rewards.weights),
        )
        surplus = kept if resamples.keep_surplus else None
        earlier = surplus.groups if surplus is not None else []
        selection = Selection(config.data.train_batch_size, resamples, has_signal, earlier)
        while prompts := selection.prompts_needed():
            selection.add(self._sample_and_score(number, prompts, selection.batches, timer))
        groups, stats = selection.sampled()
        if surplus is not None:
            surplus.keep(selection.surplus)
        # Where the surplus of the step before was enough, nothing was drawn to take means of.
        return groups, selection.all_groups or groups, stats

    def _sample_and_score(
        self, number: int, count: int, batch: int, timer: PhaseTimer
    ) -> list[ScoredGroup]:
        """Groups of the next ``count`` prompts; ``batch`` counts those of step ``number``."""
        config, components = self._config, self._components
        sampling, engine = self._sampling, components.rollout
        greedy_groups = []
        with timer("rollout"):
            prompts = list(map(components.render, components.loader.next(count)))
            requests = requests_for(prompts, config.rollout.n, config.seed, number, batch)
            # The next step's media are prepared while this one samples and learns.
            components.loader.prefetch(config.data.train_batch_size)
            groups, beside = self._generate(requests, number)
            if components.algorithm.advantage.greedy_baseline:
                single = [replace(request, n=1) for request in requests]
                greedy_groups = engine.generate(single, sampling.greedy())
        with timer("reward"):
            scored = components.rewards.score(groups, beside)
            if greedy_groups:
                baselines = components.rewards.score(greedy_groups)
                scored = [
                    replace(s, greedy=b.rewards[0]) for s, b in zip(scored, baselines, strict=True)
                ]
            if components.loader.curriculum is not None:
                components.loader.curriculum.learn(scored)
            return components.steps.score(scored) if components.steps else scored

    def _generate(
        self, requests: Sequence[Request], number: int
    ) -> tuple[list[RolloutGroup], dict[int, tuple[str, ...]]]:
        """A group for each request of step ``number``; and what was sampled beside the groups."""
        engine, sampling, views = self._components.rollout, self._sampling, self._views
        if views is None:
            return engine.generate(requests, sampling), {}
        strength = views.strength_at(number, self._config.trainer.steps)
        if views.loss != "none":
            return sample_with_view(engine, requests, sampling, views, strength), {}
        groups = engine.generate(requests, sampling)
        return groups, sample_beside(engine, requests, sampling, views, strength)


class SamplerAhead:
    """Samples and scores ahead of the update, in a separate thread.

    A context: when it ends without an error, the engine has the last weights.

    No step is being sampled when a checkpoint is due, so that a resumed run has the same schedule,
    nor when a validation is, which needs the engine. A signal may stop a run between checkpoints:
    the steps sampled ahead are lost then, and the resumed run samples them again.
    """

    def __init__(self, config: Config, sampler: Sampler, engine: RolloutEngine) -> None:
        self._config, self._sampler, self._engine = config, sampler, engine
        self._thread = ThreadPoolExecutor(1, "rollout")
        self._batches: dict[int, Future[Batch]] = {}
        self._loading: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def sample(self, number: int) -> Batch:
        """The batch of step ``number``; see :meth:`Sampler.sample`."""
        first = max(self._batches, default=number - 1) + 1
        for step in range(first, self._last_ahead(number) + 1):
            self._batches[step] = self._thread.submit(self._sample, step, self._loading)
        return self._batches.pop(number).result()

    def sync(self, policy: Policy) -> None:
        """Load the policy's weights into the engine when the steps sampled ahead are done."""
        # A copy: the next update changes the weights while the engine still samples.
        weights = policy.weights(copy=True)
        self._loading = self._thread.submit(self._engine.load_weights, weights, policy.version)

    def finish(self) -> None:
        """Wait until the engine has the last weights."""
        if self._loading is not None:
            self._loading.result()

    def _last_ahead(self, number: int) -> int:
        """The last step that may be sampled while step ``number`` learns."""
        last = number + self._config.rollout.max_off_policy_steps
        trainer = self._config.trainer
        return min(last, next_due(trainer, number), trainer.next_validation(number))

    def _sample(self, number: int, loading: Future[None] | None) -> Batch:
        if loading is not None:
            loading.result()  # finished before this began; raises its error
        return self._sampler.sample(number)


class SamplerStreaming:
    """Hands over the groups of a :class:`Stream` that have been scored, a step's at a time.

    A context, as :class:`SamplerAhead` is.
    """

    def __init__(self, config: Config, components: TrainerComponents) -> None:
        assert isinstance(components.rollout, ContinuousEngine)
        self._stream = Stream(config, components, components.rollout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self._stream.close()

    def sample(self, number: int) -> Batch:
        """As :meth:`Sampler.sample`; its ``rollout`` seconds are those that the trainer waits."""
        timer = PhaseTimer(f"step {number}")
        with timer("rollout"):
            taken = self._stream.take(number)
        groups, everything = taken.groups, [*taken.groups, *taken.dropped]
        oldest = min(c.policy_version for s in groups for c in s.group.completions)
        return Batch(groups, everything, taken.stats, timer.phases, oldest, self._stream.state)

    def sync(self, policy: Policy) -> None:
        """Give the engine the policy's weights, with which it samples on; does not wait for it."""
        self._stream.load(policy.weights(copy=True), policy.version)

    def finish(self) -> None:
        """Wait until the engine has the last weights and nothing to sample."""
        self._stream.drain()


@contextmanager
def open_sampler(
    config: Config, components: TrainerComponents
) -> Iterator[Sampler | SamplerAhead | SamplerStreaming]:
    """The sampler of a run; ahead of the update with ``rollout.max_off_policy_steps``."""
    if config.rollout.streaming is not None:
        with SamplerStreaming(config, components) as streaming:
            yield streaming
        return
    sampler = Sampler(config, components)
    if config.rollout.max_off_policy_steps == 0:
        yield sampler
        return
    with SamplerAhead(config, sampler, components.rollout) as ahead:
        yield ahead


def refuse_greedy_baseline(config: Config, algorithm: Algorithm) -> None:
    """Raises ValueError where an advantage needs what a stream of groups does not sample."""
    if config.rollout.streaming is not None and algorithm.advantage.greedy_baseline:
        raise ValueError(
            f"rollout.streaming and algorithm.advantage.type={config.algorithm.advantage.type}, "
            "whose baseline is a greedy completion beside each group; set rollout.streaming=null"
        )


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
