"""How probable completions are under a model: what policy and reference have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmr1.trainer.forward.kl_head import Distributions
from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.packed import packed_distributions, packed_scores
from mmr1.trainer.forward.process_group import (
    LockstepBatch,
    ProcessGroup,
    SingleProcess,
    own_micro_batch,
)
from mmr1.trainer.forward.sequences import GroupInput, TokenScores, completion_mask, group_input
from mmr1.trainer.models.state import copy_into, model_weights
from mmr1.types import RolloutGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import architecture_of
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class PackedModel:
    """Scores completions under a model.

    Attributes:
        temperature: That of the rollout.
        budget: Largest cost of a forward pass, in tokens; see ``micro_batches``.
        vision_token_cost: Cost of a vision token in the tower, in language-model tokens.
        features: Keeps the vision features of a frozen tower; None where the tower is trained.
        process_group: The ranks that compute together.
        forward: ``packed_scores``, or that of a sharded model.
    """

    model: Any
    family: ModelFamily
    media: MediaCache
    temperature: float
    budget: int
    vision_token_cost: float = 1.0
    features: FeatureCache | None = None
    process_group: ProcessGroup = field(default_factory=SingleProcess)
    forward: Callable[..., TokenScores] = packed_scores

    def lockstep_batches(
        self,
        groups: Sequence[RolloutGroup],
        keep: torch.Tensor | None = None,
        whole: bool = False,
    ) -> list[LockstepBatch]:
        """The completions of B sequences, or those that ``keep`` ``[B]`` names, cut by cost.

        ``whole`` leaves every group in one piece, for losses that compare its completions.
        """
        inputs = [group_input(self.family, self.media, group) for group in groups]
        vision_token_cost = self.vision_token_cost if self.features is None else 0.0
        return self.process_group.lockstep_batches(
            micro_batches(inputs, self.budget, vision_token_cost, keep, whole)
        )

    def scores(
        self, lockstep: LockstepBatch, reference: Distributions | None = None
    ) -> TokenScores:
        """Log-probs and entropies ``[b, R]`` of the turn's completions. Differentiable.

        With a reference's distributions at the same tokens, the KL to them too.
        """
        return self.forward(
            self.model,
            (self._dummy_group(),) if lockstep.micro_batch is None else lockstep.micro_batch.groups,
            self.temperature,
            self.family.forbidden_ids,
            self.features,
            run_tower=lockstep.vision,
            **({} if reference is None else {"reference": reference}),
        )

    def distributions(self, lockstep: LockstepBatch) -> Distributions:
        """What the model would draw the tokens of the turn's completions from. No gradient."""
        self.model.eval()
        return packed_distributions(self.model, own_micro_batch(lockstep).groups, self.features)

    @torch.no_grad()
    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` without gradient or dropout, micro-batch by micro-batch."""
        self.model.eval()
        found = torch.zeros(completion_mask(groups).shape)
        for lockstep in self.lockstep_batches(groups):
            scored = self.scores(lockstep).logprobs
            if lockstep.micro_batch is not None:
                found[lockstep.micro_batch.rows, : scored.shape[1]] = scored.cpu()
        return found

    def _dummy_group(self) -> GroupInput:
        """The least that can go through the network."""
        token = torch.tensor([self.family.tokenizer.eos_token_id])
        rows = architecture_of(self.model).position_rows
        positions = torch.zeros(rows, 1, dtype=torch.int64)
        return GroupInput(token, positions, 1, (), (token,))

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of another model of the same architecture, without adapters."""
        copy_into(self.model.state_dict(), weights)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """By the names of the plain transformers model; see :func:`state.model_weights`."""
        return model_weights(self.model)
