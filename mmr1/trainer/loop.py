"""The training loop: sample, score, learn, hand the weights on.

The same for one process and for many: ``policy`` and ``rollout`` are protocols, and the loop does
not know which implementation it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from mmr1.config import AlgorithmConfig, Config
from mmr1.rollout.engine import requests_for
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.mini_batches import round_robin
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.runs.metrics import step_stats
from mmr1.trainer.runs.phase_timer import PhaseTimer
from mmr1.trainer.runs.profiling import profiled
from mmr1.trainer.runs.step import Step
from mmr1.trainer.sampling.dynamic_sampling import sample_groups
from mmr1.trainer.sampling.experience import build_experience
from mmr1.trainer.sampling.rollouts import Rollout, build_rollouts
from mmr1.trainer.sampling.shuffled_frames import sample_shuffled
from mmr1.trainer.validation.validate import Validation
from mmr1.types import Experience, ScoredGroup, StepStats


def train(config: Config, components: TrainerComponents, done: int = 0) -> Iterator[Step]:
    """Run up to step ``trainer.max_steps``, ``done`` of them done before; yields each when done.

    Raises:
        NoSignalError: Dynamic sampling found no group to learn from.
        FailedStepError: The loss or the gradient is not finite; the weights are unchanged.
    """
    policy, reference = components.policy, components.reference
    roll_out_step = partial(roll_out, config, components)
    with build_rollouts(config, components.rollout, roll_out_step) as rollouts:
        for number in range(done + 1, config.trainer.max_steps + 1):
            timer = PhaseTimer(f"step {number}")
            with profiled(config.trainer, number, components.ranks):
                rollout = rollouts.take(number)
                sampled, version = rollout.sampled, policy.version
                with timer("experience"):
                    batch = make_batch(config, components, sampled.groups, number)
                with timer("update"), attach_batch_to_failure(number, batch):
                    stats = learn(components, batch, is_warm_up(number, config.algorithm))
                components.coefficients.adapt(stats)
                with timer("sync"):
                    rollouts.load_weights(policy)
                    if reference and is_due(number, config.algorithm.ref_model_sync_steps):
                        reference.refresh(config.algorithm.ref_model_mixup_alpha)
            stats |= {**sampled.stats, "rollout/staleness": staleness(sampled.groups, version)}
            seconds = {**rollout.seconds, **timer.seconds()}
            line = step_stats(number, sampled.all_groups, stats, seconds, components.media)
            if components.validation and config.trainer.validates(number):
                rollouts.finish()
                line |= validated(components.validation, number)
            yield Step(number, line, sampled.groups, first_advantages(batch), rollout.state)


def validated(validation: Validation, number: int) -> StepStats:
    """The validation after step ``number``, 0 before the first: what to log."""
    timer = PhaseTimer(f"step {number}")
    with timer("validation"):
        stats = validation(number)
    return {**stats, **{f"time/{name}": seconds for name, seconds in timer.seconds().items()}}


def roll_out(config: Config, components: TrainerComponents, number: int) -> Rollout:
    """Sample and score what step ``number`` learns from."""
    timer = PhaseTimer(f"step {number}")
    sample_batch = partial(sample_and_score, config, components, timer, number)
    groups = sample_groups(
        sample_batch,
        config.rollout.batch_size,
        config.algorithm,
        components.algorithm.step_supervision,
        list(config.rewards.weights),
    )
    if components.replay is not None:
        groups = components.replay.fill(number, groups)
    if components.loader.curriculum is not None:
        groups = replace(groups, stats={**groups.stats, **components.loader.curriculum.stats()})
    return Rollout(groups, timer.phases, rollout_state(components))


def rollout_state(components: TrainerComponents) -> Callable[[], Mapping[str, Any]]:
    """A function that gives the state of what rollouts move on, as it is now."""
    sampler = components.loader.state_dict()
    if components.replay is None:
        return lambda: {"sampler": sampler}
    replay = components.replay.state_now()
    return lambda: {"sampler": sampler, "replay": replay()}


def make_batch(
    config: Config, components: TrainerComponents, scored: Sequence[ScoredGroup], number: int
) -> Experience:
    """Advantages and log-probs of the groups, and the step's demonstrations for the PTX term."""
    batch = build_experience(
        scored,
        components.algorithm,
        config.algorithm,
        components.policy,
        components.reference,
        components.coefficients,
        config.rollout.sampling.max_tokens,
        components.critic,
        config.rewards.weights,
    )
    if components.demonstrations is None:
        return batch
    demonstrations = round_robin(components.demonstrations.next(), batch.mini_batches)
    return replace(batch, demonstrations=demonstrations, ptx_coef=config.algorithm.ptx_coef)


def staleness(scored: Sequence[ScoredGroup], version: int) -> int:
    """Updates between the oldest weights that sampled these completions and those that learn."""
    return version - min(c.policy_version for s in scored for c in s.group.completions)


def sample_and_score(
    config: Config,
    components: TrainerComponents,
    timer: PhaseTimer,
    number: int,
    count: int,
    batch: int,
) -> list[ScoredGroup]:
    """Groups of the next ``count`` prompts; ``batch`` counts the calls of step ``number``."""
    sampling = config.rollout.sampling
    greedy_groups = []
    shuffled: dict[int, tuple[str, ...]] = {}
    with timer("rollout"):
        prompts = [components.render(sample) for sample in components.loader.next(count)]
        requests = requests_for(prompts, config.rollout.n, config.seed, number, batch)
        # The next step's media are prepared while this one samples and learns.
        components.loader.prefetch(config.rollout.batch_size)
        groups = components.rollout.generate(requests, sampling)
        if components.algorithm.greedy_baseline:
            single = [replace(request, n=1) for request in requests]
            greedy_groups = components.rollout.generate(single, sampling.greedy())
        if components.algorithm.shuffled_frames:
            shuffled = sample_shuffled(components.rollout, requests, sampling)
    with timer("reward"):
        scored = components.rewards.score(groups, shuffled)
        if greedy_groups:
            baselines = components.rewards.score(greedy_groups)
            scored = [
                replace(s, greedy=b.rewards[0]) for s, b in zip(scored, baselines, strict=True)
            ]
        if components.loader.curriculum is not None:
            components.loader.curriculum.learn(scored)
        return components.steps.score(scored) if components.steps else scored


def learn(components: TrainerComponents, batch: Experience, warm_up: bool) -> StepStats:
    """The critic, if there is one, learns in every step; the policy after the critic's warm-up."""
    stats = {} if components.critic is None else components.critic.update(batch)
    return stats if warm_up else {**stats, **components.policy.update(batch)}


def is_warm_up(number: int, config: AlgorithmConfig) -> bool:
    """Is step ``number`` one of those in which the critic alone learns?"""
    return config.critic is not None and number <= config.critic.warmup_steps


def is_due(number: int, every: int) -> bool:
    """Is step ``number`` one of every ``every`` steps? Never for 0."""
    return every > 0 and number % every == 0


class FailedStepError(NonFiniteError):
    """An update refused its numbers; ``step`` holds what it was to learn from."""

    def __init__(self, message: str, step: Step) -> None:
        super().__init__(message)
        self.step = step


@contextmanager
def attach_batch_to_failure(number: int, batch: Experience) -> Iterator[None]:
    """An update that fails on its numbers takes its batch along."""
    try:
        yield
    except NonFiniteError as error:
        step = Step(number, {}, batch.groups, first_advantages(batch))
        raise FailedStepError(str(error), step) from error


def first_advantages(batch: Experience) -> list[float]:
    """Each completion's advantage; where its tokens differ, the first that is not 0."""
    first = batch.advantages.ne(0).float().argmax(dim=1, keepdim=True)
    return batch.advantages.gather(1, first)[:, 0].tolist()
