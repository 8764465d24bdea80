"""The policy in one process: its weights, its log-probs and its update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch

from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.losses import token_weights
from mmr1.trainer.optimizer import Optimizer, check_finite
from mmr1.trainer.packed import packed_scores
from mmr1.trainer.sequences import TokenScores, group_input
from mmr1.types import Experience, RolloutGroup, StepStats
from mmr1.vision.families.qwen2_5_vl import Family
from mmr1.vision.prepare import MediaCache


class Policy(Protocol):
    """What the loop asks of the policy, in one process or on many."""

    version: int

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient."""
        ...

    def update(self, experience: Experience) -> StepStats:
        """Learn from one batch; returns what to log."""
        ...

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by the names of the transformers model."""
        ...


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores completions under a model: what policy and reference have in common.

    Attributes:
        temperature: That of the rollout.
        micro_batch: Sequences per forward pass.
    """

    model: Any
    family: Family
    media: MediaCache
    temperature: float
    micro_batch: int

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        """Log-probs and entropies ``[B, R]`` of all completions, in one differentiable pass."""
        inputs = [group_input(self.family, self.media, group) for group in groups]
        return packed_scores(self.model, inputs, self.temperature, self.family.forbidden_ids)

    @torch.no_grad()
    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` without gradient, micro-batch by micro-batch."""
        longest = max(len(c.token_ids) for g in groups for c in g.completions)
        pieces = [
            self.scores([groups[i] for i in batch]).logprobs
            for batch in micro_batches(groups, range(len(groups)), self.micro_batch)
        ]
        return torch.cat([torch.nn.functional.pad(p, (0, longest - p.shape[1])) for p in pieces])


class LocalPolicy:
    """The policy of a single process: one model, one optimizer."""

    def __init__(
        self, scorer: Scorer, algorithm: Algorithm, optimizer: Optimizer, updates: int, limit: int
    ) -> None:
        self.version = 0
        self._scorer = scorer
        self._algorithm = algorithm
        self._optimizer = optimizer
        self._updates = updates
        self._limit = limit  # longest completion, for the constant denominator

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._scorer.logprobs(groups)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._scorer.model.state_dict()

    def update(self, experience: Experience) -> StepStats:
        """``algorithm.updates_per_rollout`` optimizer steps on the batch.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
        """
        self._scorer.model.train()
        for _ in range(self._updates):
            stats = self._accumulate(experience)
            stats["lr"] = self._optimizer.lr
            stats["grad_norm"] = self._optimizer.step()
            self.version += 1
        return stats

    def _accumulate(self, experience: Experience) -> StepStats:
        """Sum up the gradient over micro-batches; token means of what is logged."""
        mask = experience.completion_mask
        weights = token_weights(mask, self._algorithm.aggregation, self._limit)
        totals: dict[str, float] = defaultdict(float)
        groups = [scored.group for scored in experience.groups]
        tokens = 0.0
        for batch in micro_batches(groups, self._learning(experience), self._scorer.micro_batch):
            rows = _rows(groups, batch)
            scores = self._scorer.scores([groups[i] for i in batch])
            inputs = _loss_inputs(experience, rows, scores)
            width = scores.logprobs.shape[1]
            chosen = mask[rows, :width]
            loss = (weights[rows, :width] * self._algorithm.token_loss(inputs)).sum()
            totals["loss"] += check_finite(loss)
            loss.backward()
            tokens += float(chosen.sum())
            for name, values in self._logged(inputs, experience, rows).items():
                totals[name] += float(values.detach()[chosen].sum())
        return {k: v if k == "loss" else v / max(tokens, 1) for k, v in totals.items()}

    def _logged(
        self, inputs: LossInputs, experience: Experience, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        width = inputs.logprobs.shape[1]
        gap = inputs.logprobs.detach() - experience.rollout_logprobs[rows, :width]
        return {
            "entropy": inputs.entropy,
            "rollout/logprob_gap": gap.abs(),
            **self._algorithm.metrics(inputs),
        }

    def _learning(self, experience: Experience) -> list[int]:
        """Indices of the groups whose gradient can be other than 0.

        At least one, so that every step has an entropy and a log-prob gap to log.
        """
        everything = list(range(len(experience.groups)))
        if not self._algorithm.needs_signal:
            return everything
        sizes = [len(s.group.completions) for s in experience.groups]
        has_signal = [a.any().item() for a in experience.advantages.split(sizes)]
        return [i for i in everything if has_signal[i]] or everything[:1]


def _loss_inputs(experience: Experience, rows: torch.Tensor, scores: TokenScores) -> LossInputs:
    width = scores.logprobs.shape[1]
    old, ref = experience.old_logprobs, experience.ref_logprobs
    return LossInputs(
        logprobs=scores.logprobs,
        old_logprobs=scores.logprobs.detach() if old is None else old[rows, :width],
        advantages=experience.advantages[rows, :width],
        entropy=scores.entropy,
        ref_logprobs=None if ref is None else ref[rows, :width],
    )


def micro_batches(
    groups: Sequence[RolloutGroup], indices: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Group indices in batches of at most ``size`` sequences; a larger group goes alone."""
    batch: list[int] = []
    sequences = 0
    for index in indices:
        count = len(groups[index].completions)
        if batch and sequences + count > size:
            yield batch
            batch, sequences = [], 0
        batch.append(index)
        sequences += count
    if batch:
        yield batch


def _rows(groups: Sequence[RolloutGroup], batch: Sequence[int]) -> torch.Tensor:
    """Places ``[b]`` of the batch's completions among all completions."""
    ends = list(accumulate(len(g.completions) for g in groups))
    return torch.cat([torch.arange(ends[i] - len(groups[i].completions), ends[i]) for i in batch])
