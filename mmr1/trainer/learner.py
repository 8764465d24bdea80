"""What lies between a scored batch and new weights: experience, update, sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mmr1.config import Config
from mmr1.rollout.protocol import request_seed
from mmr1.trainer.runs.step import PhaseTimer
from mmr1.trainer.runs.step_file import StepRecord, weights_on_disk
from mmr1.trainer.sampler import Batch
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.views import Piece, masked_logprobs, vision_use
from mmr1.types import Experience, StepStats

if TYPE_CHECKING:
    from mmr1.trainer.components import TrainerComponents


class Learner:
    """The policy, and with it the critic, the reference and the coefficients that adapt.

    Args:
        done: Steps that were finished when this process began.
    """

    def __init__(self, config: Config, components: TrainerComponents, done: int = 0) -> None:
        self._config, self._parts, self._done = config, components, done
        self._models = Models(components.policy, components.reference, components.critic)

    def experience(self, number: int, batch: Batch) -> Experience:
        """Advantages, masks and log-probs of the batch of step ``number``."""
        config, parts, masked = self._config, self._parts, None
        if (perception := config.algorithm.perception) is not None:
            # First: the inputs of what is scored last are kept for the update.
            groups = [scored.group for scored in parts.algorithm.shown(batch.groups)]
            seed = request_seed(config.seed, number, "mask")
            masked = masked_logprobs(parts.policy, groups, perception.mask_ratio, seed)
        experience = build_experience(
            batch.groups, parts.algorithm, self._models, parts.coefficients
        )
        tokens = replace(experience.tokens, masked_logprobs=masked)
        experience = replace(experience, tokens=tokens)
        if parts.demonstrations is not None:
            experience = experience.with_demonstrations(parts.demonstrations.next())
        return experience

    def update(self, number: int, experience: Experience) -> tuple[StepStats, StepRecord | None]:
        """Update critic and policy; returns metrics, and the record of a step that gets a file.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
        """
        parts, stats, record = self._parts, dict[str, float](), None
        if parts.critic is not None:
            stats |= parts.critic.update(experience)
        if number > self._critic_alone:
            version = parts.policy.version
            if weights := weights_on_disk(self._config, number, self._done):
                update = parts.policy.measured_update(experience)
                record = StepRecord(experience, update, version, weights)
            stats |= update.stats if record else parts.policy.update(experience)
        parts.coefficients.adapt(stats)
        return stats, record

    @property
    def _critic_alone(self) -> int:
        """Steps in which only the critic learns."""
        critic = self._config.algorithm.critic
        return 0 if critic is None else critic.warmup_steps

    def refresh_reference(self, number: int) -> None:
        """Copy the policy into a moving reference when that is due."""
        moving, reference = self._config.algorithm.moving_reference, self._parts.reference
        if reference is not None and moving and number % moving.sync_steps == 0:
            reference.refresh(moving.mixup_alpha)

    def vision_use(
        self, number: int, batch: Batch, timer: PhaseTimer
    ) -> tuple[StepStats, Mapping[int, list[list[Piece]]]]:
        """How much the completions depend on their media, in a step that measures it."""
        every = self._config.trainer.vision_use_steps
        if not every or number % every:
            return {}, {}
        groups = [scored.group for scored in batch.groups]
        with timer("vision"):
            use = vision_use(self._parts.policy, groups)
            return use.metrics, use.pieces(groups, self._parts.completion_text)
