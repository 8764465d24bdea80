"""The policy in one process: its weights, its log-probs and its update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.kl import k3
from mmr1.trainer.micro_batches import micro_batches
from mmr1.trainer.optimizer import Optimizer, check_finite
from mmr1.trainer.packed import packed_scores
from mmr1.trainer.sequences import GroupInput, TokenScores, completion_mask, group_input
from mmr1.trainer.state import copy_into, load_snapshot, model_snapshot, whole_weights
from mmr1.trainer.team import Alone, Team, Turn
from mmr1.trainer.vision_features import FeatureCache
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

    def snapshot(self, copy: bool = False) -> Callable[[Path], None]:
        """What writes the policy as it is now into a checkpoint's folder; see ``state.py``."""
        ...

    def load_snapshot(self, checkpoint: Path) -> None:
        """Become the policy of a checkpoint, its optimizer and generators included."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores completions under a model: what policy and reference have in common.

    Attributes:
        temperature: That of the rollout.
        budget: Largest cost of a forward pass, in tokens; see ``micro_batches``.
        vision_cost: Cost of a vision token in the tower, in language-model tokens.
        features: Keeps the vision features of a frozen tower; None where the tower is trained.
        team: The ranks that compute together.
        forward: ``packed_scores``, or that of a sharded model.
    """

    model: Any
    family: Family
    media: MediaCache
    temperature: float
    budget: int
    vision_cost: float = 1.0
    features: FeatureCache | None = None
    team: Team = field(default_factory=Alone)
    forward: Callable[..., TokenScores] = packed_scores

    def turns(self, groups: Sequence[RolloutGroup], keep: torch.Tensor | None = None) -> list[Turn]:
        """The completions of B sequences, or those that ``keep`` ``[B]`` names, cut by cost."""
        inputs = [group_input(self.family, self.media, group) for group in groups]
        vision_cost = self.vision_cost if self.features is None else 0.0
        return self.team.turns(micro_batches(inputs, self.budget, vision_cost, keep))

    def scores(self, turn: Turn) -> TokenScores:
        """Log-probs and entropies ``[b, R]`` of the turn's completions. Differentiable."""
        return self.forward(
            self.model,
            (self._company(),) if turn.batch is None else turn.batch.groups,
            self.temperature,
            self.family.forbidden_ids,
            self.features,
            run_tower=turn.vision,
        )

    @torch.no_grad()
    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` without gradient, micro-batch by micro-batch."""
        found = torch.zeros(completion_mask(groups).shape)
        for turn in self.turns(groups):
            scored = self.scores(turn).logprobs
            if turn.batch is not None:
                found[turn.batch.rows, : scored.shape[1]] = scored.cpu()
        return found

    def _company(self) -> GroupInput:
        """The least that can go through the network."""
        token = torch.tensor([self.family.tokenizer.eos_token_id])
        return GroupInput(token, torch.zeros(3, 1, dtype=torch.int64), (), (token,))

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of another model of the same architecture."""
        copy_into(self.model.state_dict(), weights)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The model's weights by name: not copies, but whole where they are sharded."""
        return whole_weights(self.model.state_dict())


class LocalPolicy:
    """One model and one optimizer: the policy of a single process, or a rank's part of it."""

    def __init__(
        self, scorer: Scorer, algorithm: Algorithm, optimizer: Optimizer, updates: int
    ) -> None:
        self.version = 0
        self._scorer = scorer
        self._algorithm = algorithm
        self._optimizer = optimizer
        self._updates = updates

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._scorer.logprobs(groups)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._scorer.weights()

    def snapshot(self, copy: bool = False) -> Callable[[Path], None]:
        scorer = self._scorer
        processor, rank = scorer.family.processor, scorer.team.rank
        return model_snapshot(scorer.model, processor, self._optimizer, copy, rank)

    def load_snapshot(self, checkpoint: Path) -> None:
        load_snapshot(checkpoint, self._optimizer, self._scorer.team.rank)

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        self._optimizer.load_state_dict(state["optimizer"])

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
        sums: dict[str, float] = defaultdict(float)
        groups = [scored.group for scored in experience.groups]
        for turn in self._scorer.turns(groups, self._learning(experience)):
            scores = self._scorer.scores(turn)
            if turn.batch is None:
                (0 * scores.logprobs.sum()).backward()
                continue
            part = _rows(experience, turn.batch.rows, scores.logprobs)
            inputs = _loss_inputs(part, scores)
            loss = (part.loss_weights * self._algorithm.token_loss(inputs)).sum()
            # Ranks' gradients are averaged, and should be added up.
            (loss * self._scorer.team.size).backward()
            sums["loss"] += float(loss.detach())
            sums["tokens"] += float(part.completion_mask.sum())
            for name, values in self._logged(inputs, part).items():
                sums[name] += float(values.detach()[part.completion_mask].sum())
        return self._means(self._scorer.team.total(sums))

    def _means(self, sums: dict[str, float]) -> StepStats:
        """The loss as it is, the rest per token; raises where the loss is not finite."""
        tokens = max(sums.pop("tokens"), 1)
        loss = sums.pop("loss")
        if not math.isfinite(loss):
            self._optimizer.zero_grad()
        check_finite(loss)
        return {"loss": loss, **{name: value / tokens for name, value in sums.items()}}

    def _logged(self, inputs: LossInputs, part: Experience) -> dict[str, torch.Tensor]:
        gap = inputs.logprobs.detach() - part.rollout_logprobs
        ref = inputs.logprobs if part.ref_logprobs is None else part.ref_logprobs
        return {
            "entropy": inputs.entropy,
            "kl": k3(inputs.logprobs, ref),
            "rollout/logprob_gap": gap.abs(),
            **self._algorithm.metrics(inputs),
        }

    def _learning(self, experience: Experience) -> torch.Tensor | None:
        """``[B]`` bool: the sequences whose gradient can be other than 0; None for all.

        At least one group, so that every step has an entropy and a log-prob gap to log.
        """
        if not self._algorithm.needs_signal:
            return None
        has_signal = experience.advantages.ne(0).any(dim=1)
        if experience.groups and not has_signal.any():
            has_signal[: len(experience.groups[0].group.completions)] = True
        return has_signal


def _rows(experience: Experience, rows: torch.Tensor, like: torch.Tensor) -> Experience:
    """The given sequences of a batch, as wide as ``like`` ``[b, R]`` and on its device."""

    def cut(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return value[rows, : like.shape[1]].to(like.device) if is_tensor else value

    return replace(
        experience, **{f.name: cut(getattr(experience, f.name)) for f in fields(experience)}
    )


def _loss_inputs(part: Experience, scores: TokenScores) -> LossInputs:
    return LossInputs(
        logprobs=scores.logprobs,
        old_logprobs=scores.logprobs.detach() if part.old_logprobs is None else part.old_logprobs,
        advantages=part.advantages,
        entropy=scores.entropy,
        mask=part.completion_mask,
        ref_logprobs=part.ref_logprobs,
        kl_coef=part.kl_coef,
        entropy_coef=part.entropy_coef,
    )
