"""The training loop: sample, score, advantages, update, sync.

The same for one process and for many. ``run.py`` drives it: records the steps, saves, stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmr1.config import Config
from mmr1.trainer.learner import Learner
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.runs.step import FailedStepError, PhaseTimer, Step, profiled_if, step_stats
from mmr1.trainer.sampler import Sampler
from mmr1.trainer.sampling.experience import first_advantages
from mmr1.types import StepStats

if TYPE_CHECKING:
    from mmr1.trainer.components import TrainerComponents


def train(config: Config, components: TrainerComponents, done: int = 0) -> Iterator[Step]:
    """Run the steps after ``done`` up to ``trainer.max_steps``; yields each when finished.

    Raises:
        NoSignalError: Dynamic sampling found no group to learn from.
        FailedStepError: The loss or the gradient is not finite; the weights are unchanged.
    """
    policy, learner = components.policy, Learner(config, components, done)
    with Sampler(config, components) as sampler:
        for number in range(done + 1, config.trainer.steps + 1):
            timer = PhaseTimer(f"step {number}")
            with profiled_if(config.trainer, number, components.ranks):
                batch = sampler.sample(number)
                stats: StepStats = {"rollout/staleness": policy.version - batch.oldest_version}
                with timer("experience"):
                    experience = learner.experience(number, batch)
                advantages = first_advantages(experience.tokens.advantages).tolist()
                vision_stats, pieces = learner.vision_use(number, batch, timer)
                with timer("update"):
                    try:
                        updated, record = learner.update(number, experience)
                    except NonFiniteError as error:
                        step = Step(number, {}, batch.groups, advantages)
                        raise FailedStepError(str(error), step) from error
                with timer("sync"):
                    sampler.sync(policy)
                    learner.refresh_reference(number)
            seconds = {**batch.seconds, **timer.seconds()}
            stats |= vision_stats | updated | batch.stats
            line = step_stats(number, batch.all_groups, stats, seconds, components.media)
            if components.validation is not None and config.trainer.validates(number):
                sampler.finish()
                line |= components.validation(number)
            yield Step(number, line, batch.groups, advantages, batch.state, pieces, record)
