"""A model that learns from examples and its optimizer, or a rank's part of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import WriteCheckpoint, load_snapshot, model_snapshot
from mmr1.types import RolloutGroup, StepStats

Example = TypeVar("Example")
Contravariant = TypeVar("Contravariant", contravariant=True)


class Learner(Protocol[Contravariant]):
    """The protocol of a model that learns, in one process or on many."""

    def step(self, batch: Sequence[Contravariant]) -> StepStats:
        """One optimizer step on the mean loss of a batch; returns what to log.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
        """
        ...

    def by_token(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient: the log-probs of completion tokens at temperature
        1, or a scalar model's numbers there.
        """
        ...

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        """A function that writes the present model into a checkpoint's folder; see ``state.py``."""
        ...

    def load_snapshot(self, checkpoint: Path) -> None:
        """Restore the model and its optimizer from a checkpoint."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


@dataclass(frozen=True)
class PolicyLearner(Generic[Example]):
    """A policy that learns from examples; a ``Learner``.

    Attributes:
        packed_model: Model with its own distribution.
        learn: The step.
        sampled: Distribution of the engine that it is compared with.
    """

    packed_model: PackedModel
    optimizer: Optimizer
    learn: Callable[[PackedModel, Optimizer, Sequence[Example]], StepStats]
    sampled: Distribution

    @property
    def optimizers(self) -> list[Optimizer]:
        """Its only optimizer, in a list."""
        return [self.optimizer]

    def step(self, batch: Sequence[Example]) -> StepStats:
        return self.learn(self.packed_model, self.optimizer, batch)

    def by_token(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self.packed_model.logprobs(groups)

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """Log-probs ``[B, R]`` as the engine that samples gives them."""
        return replace(self.packed_model, distribution=self.sampled).logprobs(groups)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by the names of the transformers model."""
        return self.packed_model.weights()

    def engine_weights(self) -> Mapping[str, torch.Tensor]:
        """See :meth:`PackedModel.engine_weights`."""
        return self.packed_model.engine_weights()

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        own = self.packed_model
        processor, group = own.family.processor, own.process_group
        return model_snapshot(own.model, processor, self.optimizer, copy, group)

    def load_snapshot(self, checkpoint: Path) -> None:
        load_snapshot(checkpoint, self.optimizer, self.packed_model.process_group.rank)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)
