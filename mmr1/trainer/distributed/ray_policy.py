"""Policy, reference, critic and offline learner on all ranks, behind the protocols of one process.

Each rank gets whole groups; the shares cost about the same, counted without what does not learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch

from mmr1.trainer.distributed.all_ranks import (
    OnRanks,
    PromptCost,
    cost_of_group,
    cut_groups,
    cut_rows,
)
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.models.critic import LocalCritic, critic_experience, critic_stats, first_fit
from mmr1.trainer.models.learner import Learner, PolicyLearner
from mmr1.trainer.models.measured import MeasuredUpdate
from mmr1.trainer.models.policy import LocalPolicy, SentWeights
from mmr1.trainer.models.reference import Reference
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.types import CriticTargets, Experience, RolloutGroup, StepStats

Example = TypeVar("Example")
Learnt = TypeVar("Learnt")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class RayPolicy:
    """The policy on all ranks; a ``Policy``.

    Args:
        sync_adapters_only: Engines are given the adapters alone.
    """

    def __init__(self, policy: OnRanks[LocalPolicy], sync_adapters_only: bool = False) -> None:
        self._policy = policy
        self._sync_adapters_only = sync_adapters_only
        self.version = 0

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._policy.by_token(LocalPolicy.logprobs, groups)

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        results = self._policy.by_group(LocalPolicy.scores, groups)
        logprobs = self._policy.in_order(groups, [scores.logprobs for scores in results])
        entropy = self._policy.in_order(groups, [scores.entropy for scores in results])
        return TokenScores(logprobs, entropy)

    def update(self, experience: Experience) -> StepStats:
        return self._update(LocalPolicy.update, experience)

    def measured_update(self, experience: Experience) -> MeasuredUpdate:
        return self._update(LocalPolicy.measured_update, experience)

    def _update(
        self, learn: Callable[[LocalPolicy, Experience], Learnt], experience: Experience
    ) -> Learnt:
        ranks = self._policy.ranks
        parts = parts_of_update(experience, ranks.prompt_cost, len(ranks))
        learnt = self._policy.each(learn, parts)[0]
        self.version = self.state_dict()["version"]
        return learnt

    def weights(self, copy: bool = False) -> SentWeights:
        """A handle of the weights, which the ranks have."""
        own = LocalPolicy.weights if self._sync_adapters_only else LocalPolicy.engine_weights
        return self._policy.weights(own, copy)

    def snapshot(self, copy: bool = False, only_model: bool = False) -> WriteCheckpoint:
        return self._policy.snapshot(LocalPolicy.snapshot, copy, only_model)

    def load_snapshot(self, checkpoint: Path) -> None:
        self._policy.call(LocalPolicy.load_snapshot, checkpoint.resolve())

    def state_dict(self) -> dict[str, Any]:
        return self._policy.ask(LocalPolicy.state_dict)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.call(LocalPolicy.load_state_dict, state)
        self.version = state["version"]


class RayReference:
    """The reference policy on all ranks; a ``Reference``."""

    def __init__(self, reference: OnRanks[Reference]) -> None:
        self._reference = reference

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._reference.by_token(Reference.logprobs, groups)

    def refresh(self, share: float = 1.0) -> None:
        self._reference.call(Reference.refresh, share)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._reference.gather(Reference.weights)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._reference.load_weights(Reference.load_weights, weights)


class RayCritic:
    """The critic on all ranks; a ``Critic``.

    Args:
        mini_batch_size: Prompts of an optimizer step; None for all.
    """

    def __init__(self, critic: OnRanks[LocalCritic], mini_batch_size: int | None) -> None:
        self._critic = critic
        self._mini_batch_size = mini_batch_size

    def values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._critic.by_token(LocalCritic.values, groups)

    def final_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        pieces = cut_groups(groups, len(self._critic.ranks))
        results = self._critic.by_group(LocalCritic.final_values, pieces)
        return self._critic.in_order(pieces, [result[:, None] for result in results])[:, 0]

    def update(self, experience: Experience) -> StepStats:
        if not experience.tokens.mask.any():  # nothing to learn; a new head is fitted later
            return {}
        is_new = self._critic.ask(LocalCritic.steps_taken) == 0
        line = first_fit(experience) if is_new else None
        own = critic_experience(experience, self._mini_batch_size)
        ranks = self._critic.ranks
        parts = parts_of_update(own, ranks.prompt_cost, len(ranks))
        learnt = self._critic.each(LocalCritic.learn, parts, line)[0]
        return {**critic_stats(experience), **learnt}

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        return self._critic.snapshot(LocalCritic.snapshot, copy)

    def load_snapshot(self, checkpoint: Path) -> None:
        self._critic.call(LocalCritic.load_snapshot, checkpoint.resolve())

    def state_dict(self) -> dict[str, Any]:
        return self._critic.ask(LocalCritic.state_dict)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._critic.call(LocalCritic.load_state_dict, state)


class RayLearner(Generic[Example]):
    """A policy or a reward model that learns from examples, on all ranks; a ``Learner``.

    Each rank gets examples that cost about the same.

    Args:
        learner: The ``Learner`` that the ranks have built, such as a ``PolicyLearner``.
        group_of: The prompt and completions of an example, for its cost.
    """

    def __init__(self, learner: OnRanks[Any], group_of: Callable[[Example], RolloutGroup]) -> None:
        self._learner = learner
        self._group_of = group_of

    def step(self, batch: Sequence[Example]) -> StepStats:
        shares = self._learner.ranks.shares([self._group_of(example) for example in batch])
        parts = [[batch[i] for i in share] for share in shares]
        return self._learner.each(Learner.step, parts)[0]

    def by_token(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._learner.by_token(Learner.by_token, groups)

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._learner.by_token(PolicyLearner.logprobs, groups)

    def call(
        self,
        method: Callable[Concatenate[Any, Arguments], Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call a method of what the ranks have built; see :meth:`OnRanks.call`."""
        return self._learner.call(method, *args, **options)

    def weights(self) -> SentWeights:
        """A handle of the weights, which stay on the ranks."""
        return self._learner.weights(PolicyLearner.engine_weights)

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        return self._learner.snapshot(Learner.snapshot, copy)

    def load_snapshot(self, checkpoint: Path) -> None:
        self._learner.call(Learner.load_snapshot, checkpoint.resolve())

    def state_dict(self) -> dict[str, Any]:
        return self._learner.ask(Learner.state_dict)

    def load_state_dict(self, state: Any) -> None:
        self._learner.call(Learner.load_state_dict, state)


def parts_of_update(
    experience: Experience, prompt_cost: PromptCost, ranks: int
) -> list[Experience]:
    """Each rank's part of the experience of an update."""
    experience = cut_experience(experience, ranks)
    rows, of_demonstrations = rows_of_groups(experience), []
    for mini_batch in experience.mini_batches:
        own = mini_batch.demonstrations
        costs = [cost_of_group(prompt_cost, d.prompt, d.completions[:1]) for d in own]
        of_demonstrations.append(balanced(costs, ranks))
    parts = []
    for rank, share in enumerate(split_update(experience, prompt_cost, ranks)):
        part = select_groups(experience, share, rows)
        mini_batches = tuple(
            replace(own, demonstrations=tuple(own.demonstrations[i] for i in of_ranks[rank]))
            for own, of_ranks in zip(part.mini_batches, of_demonstrations, strict=True)
        )
        parts.append(replace(part, mini_batches=mini_batches))
    return parts


def cut_experience(experience: Experience, ranks: int) -> Experience:
    """Cut the groups of an update where a mini-batch has fewer that learn than there are ranks."""
    rows = rows_of_groups(experience)
    learning = [
        sum(bool(own.learning[group.start : group.stop].any()) for group in rows)
        for own in experience.mini_batches
    ]
    pieces = -(-ranks // min(filter(None, learning), default=ranks))
    cut = (
        replace(
            scored,
            group=replace(scored.group, completions=scored.group.completions[own]),
            rewards=scored.rewards[own],
            steps=scored.steps and scored.steps[own],
        )
        for scored in experience.groups
        for own in cut_rows(len(scored.rewards), pieces)
    )
    return replace(experience, groups=tuple(cut)) if pieces > 1 else experience


def rows_of_groups(experience: Experience) -> list[range]:
    """The rows of each group's sequences."""
    ends = list(accumulate(len(s.group.completions) for s in experience.groups))
    return [range(*pair) for pair in pairwise([0, *ends])]


def select_groups(
    experience: Experience, groups: Sequence[int], rows: Sequence[range] | None = None
) -> Experience:
    """The experience of these groups, by index. Their loss weights do not change.

    Args:
        rows: Rows of all groups, :func:`rows_of_groups`, where several selections are made.
    """
    rows = rows_of_groups(experience) if rows is None else rows
    index = torch.tensor([row for g in groups for row in rows[g]], dtype=torch.int64)
    critic = experience.critic
    return replace(
        experience,
        groups=tuple(experience.groups[g] for g in groups),
        tokens=experience.tokens.select(index),
        mini_batches=tuple(replace(m, learning=m.learning[index]) for m in experience.mini_batches),
        critic=critic and CriticTargets(critic.values[index], critic.returns[index]),
    )


def split_update(experience: Experience, prompt_cost: PromptCost, ranks: int) -> list[list[int]]:
    """Indices of each rank's groups: of every mini-batch a share about equal in cost.

    Groups that do not learn are left out.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for mini_batch in experience.mini_batches:
        costs: dict[int, float] = {}  # of each group that learns: its prompt and what learns of it
        learns = iter(mini_batch.learning.tolist())
        for index, group in enumerate(scored.group for scored in experience.groups):
            if kept := [completion for completion in group.completions if next(learns)]:
                costs[index] = cost_of_group(prompt_cost, group.prompt, kept)
        members = list(costs)
        parts = balanced(list(costs.values()), ranks)
        for share, part in zip(shares, parts, strict=True):
            share += [members[i] for i in part]
    return shares
