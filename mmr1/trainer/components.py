"""The parts that a training run is put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmr1.data.sampler import SampleLoader
from mmr1.rollout.protocol import Engine
from mmr1.trainer.algorithm import Algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.models.critic import Critic
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.models.reference import Reference
from mmr1.trainer.runs.step import Traceable
from mmr1.trainer.sampling.open_groups import OpenGroups
from mmr1.trainer.sampling.ptx import Demonstrations
from mmr1.trainer.sampling.replay import KeptGroups, Replay
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.step_rewards import StepRewards
from mmr1.trainer.validation.evaluate import Validation
from mmr1.types import Prompt, Sample
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class TrainerComponents:
    """The parts of a run, which ``train.py`` builds from the configuration.

    Attributes:
        kept: Groups that later steps learn from: those of ``replay``, or what dynamic sampling had
            beyond a step's groups.
        open_groups: Where groups are learned from as they end.
        ranks: Where other processes than this one learn.
        completion_text: Decodes the pieces of ``trainer.vision_use_steps``.
    """

    loader: SampleLoader
    render: Callable[[Sample], Prompt]
    engine: Engine
    rewards: RewardManager
    algorithm: Algorithm
    policy: Policy
    reference: Reference | None
    coefficients: Coefficients
    media: MediaCache
    steps: StepRewards | None = None
    critic: Critic | None = None
    demonstrations: Demonstrations | None = None
    kept: KeptGroups | None = None
    replay: Replay | None = None
    open_groups: OpenGroups | None = None
    validation: Validation | None = None
    ranks: Traceable | None = None
    completion_text: Any = None
