"""A learner on all ranks, behind the protocol of a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from mmr1.trainer.distributed.all_ranks import AllRanks
from mmr1.trainer.distributed.rank_weights import RankWeights
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.types import RolloutGroup, StepStats

Example = TypeVar("Example")


class RayLearner(Generic[Example]):
    """A ``Learner`` of which each rank gets examples that cost about the same.

    Args:
        group_of: The prompt and completions of an example, for its cost.
    """

    def __init__(self, ranks: AllRanks, group_of: Callable[[Example], RolloutGroup]) -> None:
        self._ranks = ranks
        self._group_of = group_of

    def step(self, batch: Sequence[Example]) -> StepStats:
        costs = [self._ranks.cost(self._group_of(example)) for example in batch]
        shares = balanced(costs, len(self._ranks))
        parts = [([batch[i] for i in share],) for share in shares]
        return self._ranks.call_each("step", parts)[0]

    def by_token(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._ranks.by_token("by_token", groups)

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._ranks.by_token("logprobs", groups)

    def shift(self, offset: float) -> None:
        self._ranks.call("shift", offset)

    def weights(self) -> RankWeights:
        """On the ranks, from where they do not pass this process."""
        return self._ranks.weights("")

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        return self._ranks.snapshot("snapshot", copy)

    def load_snapshot(self, checkpoint: Path) -> None:
        self._ranks.call("load_snapshot", checkpoint.resolve())

    def state_dict(self) -> dict[str, Any]:
        return self._ranks.ask("state_dict")

    def load_state_dict(self, state: Any) -> None:
        self._ranks.call("load_state_dict", state)
