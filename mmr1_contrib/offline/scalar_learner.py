"""A reward model that learns from examples, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from mmr1.config import Config
from mmr1.trainer.distributed.ray_policy import RayLearner
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import LoadModel, build_packed_model, feature_cache
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.scalar_model import PackedScalarModel, Supervision, scalar_snapshot
from mmr1.trainer.models.state import WriteCheckpoint, load_snapshot
from mmr1.types import RolloutGroup, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache

Example = TypeVar("Example")


@dataclass(frozen=True)
class ScalarLearner(Generic[Example]):
    """A reward model that learns from examples; a ``Learner``.

    Attributes:
        learn: The step.
        supervision: Kind of judgement that its checkpoints name.
    """

    scalar_model: PackedScalarModel
    optimizer: Optimizer
    learn: Callable[[PackedScalarModel, Optimizer, Sequence[Example]], StepStats]
    supervision: Supervision

    def step(self, batch: Sequence[Example]) -> StepStats:
        return self.learn(self.scalar_model, self.optimizer, batch)

    def by_token(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self.scalar_model.group_values(groups)

    @torch.no_grad()
    def shift(self, offset: float) -> None:
        """Add ``offset`` to all its numbers."""
        self.scalar_model.model.head.bias.add_(offset)

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        own = self.scalar_model.packed_model
        return scalar_snapshot(
            self.scalar_model.model,
            own.family.processor,
            self.optimizer,
            copy,
            self.supervision,
            own.process_group,
        )

    def load_snapshot(self, checkpoint: Path) -> None:
        rank = self.scalar_model.packed_model.process_group.rank
        load_snapshot(checkpoint, self.optimizer, rank)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


def build_scalar_learner(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None,
    load: LoadModel,
    learn: Callable[[PackedScalarModel, Optimizer, Sequence[Example]], StepStats],
    supervision: Supervision,
) -> ScalarLearner[Example]:
    """Load the reward model of ``model.path``, to learn for ``trainer.max_steps`` steps."""
    rates = config.optimizer.lr_of_parts
    model = load(config.model, True, "model.path", head=True, lr_of_parts=rates)
    inputs, features = ModelInputs(family, media), feature_cache(config)
    backbone = build_packed_model(config, model.backbone, inputs, None, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    return ScalarLearner(PackedScalarModel(model, backbone, "at"), optimizer, learn, supervision)


def shift(learner: ScalarLearner[Example] | RayLearner[Example], offset: float) -> None:
    """Add ``offset`` to all scores of a reward model, in this process or on all ranks."""
    if isinstance(learner, RayLearner):
        learner.call(ScalarLearner.shift, offset)
    else:
        learner.shift(offset)
