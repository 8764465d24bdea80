"""Policy and reference on all ranks, behind the protocols of a single process.

Each rank gets whole groups; the shares cost about the same, counted without what does not learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmr1.trainer.distributed.published_weights import PublishedWeights
from mmr1.trainer.distributed.ray_calls import get
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import TokenScores, completion_mask
from mmr1.types import Experience, Prompt, RolloutGroup, StepStats

PromptCost = Callable[[Prompt], float]
"""Cost of a prompt in tokens of the language model, its media included."""


class RayPolicy:
    """The policy on all ranks; a ``Policy``."""

    def __init__(self, ranks: Sequence[Any], prompt_cost: PromptCost) -> None:
        self._ranks = ranks
        self._prompt_cost = prompt_cost
        self.version = 0

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, self._prompt_cost, groups, of_reference=False)

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        shares = _shares(groups, self._prompt_cost, len(self._ranks))
        results: list[TokenScores] = get(
            [
                rank.scores.remote([groups[i] for i in share])
                for rank, share in zip(self._ranks, shares, strict=True)
            ]
        )
        logprobs = _in_order(groups, shares, [result.logprobs for result in results])
        return TokenScores(
            logprobs, _in_order(groups, shares, [result.entropy for result in results])
        )

    def update(self, experience: Experience) -> StepStats:
        shares = shares_of_update(experience, self._prompt_cost, len(self._ranks))
        per_rank = [select_groups(experience, share) for share in shares]
        stats = get(
            [rank.update.remote(share) for rank, share in zip(self._ranks, per_rank, strict=True)]
        )
        self.version = self.state_dict()["version"]
        return stats[0]

    def weights(self, copy: bool = False) -> PublishedWeights:
        """In the object store, from where they do not pass this process; always a copy."""
        return get([rank.publish.remote() for rank in self._ranks])[0]

    def snapshot(self, copy: bool = False, only_model: bool = False) -> Callable[[Path], None]:
        """A function that makes the ranks write their weights as they are when it is called."""

        def write_files(folder: Path) -> None:
            get([rank.save.remote(folder.resolve(), only_model) for rank in self._ranks])

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

    def __init__(self, ranks: Sequence[Any], prompt_cost: PromptCost) -> None:
        self._ranks = ranks
        self._prompt_cost = prompt_cost

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, self._prompt_cost, groups, of_reference=True)

    def refresh(self, share: float = 1.0) -> None:
        get([rank.refresh_reference.remote(share) for rank in self._ranks])

    def weights(self) -> Mapping[str, torch.Tensor]:
        return get([rank.reference_weights.remote() for rank in self._ranks])[0]

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        import ray

        shared = ray.put(dict(weights))
        get([rank.load_reference.remote(shared) for rank in self._ranks])


def select_groups(experience: Experience, groups: Sequence[int]) -> Experience:
    """The experience of these groups, by index. Their loss weights do not change."""
    ends = np.cumsum([len(s.group.completions) for s in experience.groups])
    starts = ends - [len(s.group.completions) for s in experience.groups]
    rows = [row for g in groups for row in range(starts[g], ends[g])]
    index = torch.tensor(rows, dtype=torch.int64)

    def select(value: Any) -> Any:
        return value[index] if isinstance(value, torch.Tensor) else value

    tensors = {f.name: select(getattr(experience, f.name)) for f in fields(experience)}
    by_group = {
        "groups": tuple(experience.groups[g] for g in groups),
        "mini_batch_of": tuple(experience.mini_batch_of[g] for g in groups),
    }
    return replace(experience, **{**tensors, **by_group})


def shares_of_update(
    experience: Experience, prompt_cost: PromptCost, ranks: int
) -> list[list[int]]:
    """Indices of each rank's groups: of every mini-batch a share about equal in cost.

    Groups that do not learn are left out.
    """
    costs = _costs_of_learning(experience, prompt_cost)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in range(experience.mini_batches):
        of_mini_batch = enumerate(experience.mini_batch_of)
        members = [group for group, mine in of_mini_batch if mine == index and costs[group]]
        parts = balanced([costs[group] for group in members], ranks)
        for share, part in zip(shares, parts, strict=True):
            share += [members[i] for i in part]
    return shares


def _costs_of_learning(experience: Experience, prompt_cost: PromptCost) -> list[float]:
    """Of each group: its prompt and the completions that learn; 0 where none does."""
    costs, start = [], 0
    for scored in experience.groups:
        lengths = torch.tensor([len(c.token_ids) for c in scored.group.completions])
        rows = slice(start, start := start + len(lengths))
        kept = lengths if experience.learning is None else lengths[experience.learning[rows]]
        costs.append(prompt_cost(scored.group.prompt) + float(kept.sum()) if len(kept) else 0.0)
    return costs


def _logprobs(
    ranks: Sequence[Any],
    prompt_cost: PromptCost,
    groups: Sequence[RolloutGroup],
    of_reference: bool,
) -> torch.Tensor:
    """``[B, R]``: each rank scores its share of the groups."""
    shares = _shares(groups, prompt_cost, len(ranks))
    results = get(
        [
            rank.logprobs.remote([groups[i] for i in share], of_reference)
            for rank, share in zip(ranks, shares, strict=True)
        ]
    )
    return _in_order(groups, shares, results)


def _shares(groups: Sequence[RolloutGroup], prompt_cost: PromptCost, ranks: int) -> list[list[int]]:
    """Indices of the groups that each rank scores, about equal in cost."""
    costs = [prompt_cost(g.prompt) + sum(len(c.token_ids) for c in g.completions) for g in groups]
    return balanced(costs, ranks)


def _in_order(
    groups: Sequence[RolloutGroup], shares: Sequence[Sequence[int]], results: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The ranks' ``[b, r]`` numbers as those of all groups: ``[B, R]``."""
    rows_of = [range(0)] * len(groups)
    end = 0
    for i, group in enumerate(groups):
        rows_of[i] = range(end, end := end + len(group.completions))
    numbers = torch.zeros(completion_mask(groups).shape)
    for share, result in zip(shares, results, strict=True):
        rows = [row for i in share for row in rows_of[i]]
        numbers[rows, : result.shape[1]] = result
    return numbers
