"""The training loop: sample, score, advantages, update, sync.

The same for one process and for many: ``policy`` and ``rollout`` are protocols, and the loop does
not know which implementation it holds. ``run.py`` drives it: records the steps, saves, stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from mmr1.config import Config
from mmr1.rollout.engine import request_seed
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.runs.step import FailedStepError, PhaseTimer, Step, profiled, step_stats
from mmr1.trainer.runs.step_file import StepRecord, weights_on_disk
from mmr1.trainer.sampler import open_sampler
from mmr1.trainer.sampling.experience import Models, build_experience, first_advantages
from mmr1.trainer.sampling.other_views import by_own_view
from mmr1.trainer.sampling.views import Piece, masked_logprobs, vision_use
from mmr1.types import StepStats


def train(config: Config, components: TrainerComponents, done: int = 0) -> Iterator[Step]:
    """Run the steps after ``done`` up to ``trainer.max_steps``; yields each when finished.

    Raises:
        NoSignalError: Dynamic sampling found no group to learn from.
        FailedStepError: The loss or the gradient is not finite; the weights are unchanged.
    """
    policy, critic, reference = components.policy, components.critic, components.reference
    algorithm, validation = config.algorithm, components.validation
    models, moving = Models(policy, reference, critic), algorithm.moving_reference
    reward_weights, vision_use_steps = config.rewards.weights, config.trainer.vision_use_steps
    own_views = config.rollout.views is not None and config.rollout.views.loss == "own"
    critic_alone = 0 if algorithm.critic is None else algorithm.critic.warmup_steps
    with open_sampler(config, components) as sampler:
        for number in range(done + 1, config.trainer.steps + 1):
            timer = PhaseTimer(f"step {number}")
            traced = number in config.trainer.profile_steps
            with profiled(config.trainer, number, components.ranks) if traced else nullcontext():
                batch = sampler.sample(number)  # prompts, completions, rewards
                shown = by_own_view(batch.groups) if own_views else None
                groups = [scored.group for scored in shown or batch.groups]
                version = policy.version
                stats: StepStats = {"rollout/staleness": version - batch.oldest_version}

                with timer("experience"):
                    masked = None
                    if (perception := algorithm.perception) is not None:
                        seed = request_seed(config.seed, number, "mask")
                        masked = masked_logprobs(policy, groups, perception.mask_ratio, seed)
                    experience = build_experience(
                        batch.groups,
                        components.algorithm,
                        models,
                        components.coefficients,
                        config.rollout.max_response_length,
                        reward_weights,
                        masked,
                        shown,
                    )
                    if components.demonstrations is not None:
                        own = components.demonstrations.next()
                        experience = experience.with_demonstrations(own)
                advantages = first_advantages(experience.tokens.advantages).tolist()
                looks: Mapping[int, list[list[Piece]]] = {}
                if vision_use_steps and number % vision_use_steps == 0:
                    with timer("vision"):
                        whole = [scored.group for scored in batch.groups]
                        use = vision_use(policy, whole)
                        looks = use.pieces(whole, components.completion_text)
                    stats |= use.metrics

                record = None
                with timer("update"):
                    try:
                        if critic is not None:
                            stats |= critic.update(experience)
                        if number > critic_alone:
                            if weights := weights_on_disk(config, number, done):
                                update = policy.measured_update(experience)
                                record = StepRecord(experience, update, version, weights)
                            stats |= update.stats if record else policy.update(experience)
                    except NonFiniteError as error:
                        step = Step(number, {}, batch.groups, advantages)
                        raise FailedStepError(str(error), step) from error
                components.coefficients.adapt(stats)

                with timer("sync"):
                    sampler.sync(policy)
                    if reference is not None and moving and number % moving.sync_steps == 0:
                        reference.refresh(moving.mixup_alpha)
            stats |= batch.stats
            seconds = {**batch.seconds, **timer.seconds()}
            line = step_stats(number, batch.all_groups, stats, seconds, components.media)

            if validation is not None and config.trainer.validates(number):
                sampler.finish()
                line |= validation(number)
            yield Step(number, line, batch.groups, advantages, batch.state, looks, record)
