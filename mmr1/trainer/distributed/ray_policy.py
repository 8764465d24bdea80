"""Policy and reference on all ranks, behind the protocols of a single process.

Ranks get whole groups, about equal in cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmr1.trainer.distributed.ray_calls import get
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.types import Experience, RolloutGroup, StepStats


class RayPolicy:
    """The policy on all ranks; a ``Policy``."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = ranks
        self.version = 0

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, groups, of_reference=False)

    def update(self, experience: Experience) -> StepStats:
        groups = [scored.group for scored in experience.groups]
        parts = [part_of(experience, share) for share in _shares(groups, len(self._ranks))]
        stats = get(
            [rank.update.remote(part) for rank, part in zip(self._ranks, parts, strict=True)]
        )
        self.version = self.state_dict()["version"]
        return stats[0]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return get([rank.weights.remote() for rank in self._ranks])[0]

    def snapshot(self, copy: bool = False) -> Callable[[Path], None]:
        """The ranks write when the returned function is called; they make no copies before."""

        def write_files(folder: Path) -> None:
            get([rank.save.remote(folder.resolve()) for rank in self._ranks])

        return write_files

    def load_snapshot(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint.resolve()

    def state_dict(self) -> dict[str, Any]:
        return get([self._ranks[0].state_dict.remote()])[0]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        get([rank.load.remote(self._checkpoint, state) for rank in self._ranks])
        self.version = state["version"]


class RayReference:
    """The reference policy on all ranks; a ``Reference``."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = ranks

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, groups, of_reference=True)

    def refresh(self) -> None:
        get([rank.refresh_reference.remote() for rank in self._ranks])

    def weights(self) -> Mapping[str, torch.Tensor]:
        return get([rank.reference_weights.remote() for rank in self._ranks])[0]

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        import ray

        shared = ray.put(dict(weights))
        get([rank.load_reference.remote(shared) for rank in self._ranks])


def part_of(experience: Experience, groups: Sequence[int]) -> Experience:
    """The experience of some of its groups, by index; their loss weights stay as they are."""
    ends = np.cumsum([len(s.group.completions) for s in experience.groups])
    starts = ends - [len(s.group.completions) for s in experience.groups]
    rows = [row for g in groups for row in range(starts[g], ends[g])]
    index = torch.tensor(rows, dtype=torch.int64)

    def cut(value: Any) -> Any:
        return value[index] if isinstance(value, torch.Tensor) else value

    tensors = {f.name: cut(getattr(experience, f.name)) for f in fields(experience)}
    return replace(experience, **{**tensors, "groups": tuple(experience.groups[g] for g in groups)})


def _logprobs(
    ranks: Sequence[Any], groups: Sequence[RolloutGroup], of_reference: bool
) -> torch.Tensor:
    """``[B, R]``: each rank scores its share of the groups."""
    shares = _shares(groups, len(ranks))
    parts = get(
        [
            rank.logprobs.remote([groups[i] for i in share], of_reference)
            for rank, share in zip(ranks, shares, strict=True)
        ]
    )
    rows_of = [range(0)] * len(groups)
    end = 0
    for i, group in enumerate(groups):
        rows_of[i] = range(end, end := end + len(group.completions))
    found = torch.zeros(completion_mask(groups).shape)
    for share, part in zip(shares, parts, strict=True):
        rows = [row for i in share for row in rows_of[i]]
        found[rows, : part.shape[1]] = part
    return found


def _shares(groups: Sequence[RolloutGroup], ranks: int) -> list[list[int]]:
    """Group indices of each rank, about equal in tokens; a shared medium counts with its prompt."""
    costs = [len(g.prompt.token_ids) + sum(len(c.token_ids) for c in g.completions) for g in groups]
    return balanced(costs, ranks)
