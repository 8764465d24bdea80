"""Model inputs: a prompt, its media and its completions as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.types import RolloutGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache, PreparedMedia


@dataclass(frozen=True, slots=True)
class GroupInput:
    """One prompt and its completions, as tensors.

    Attributes:
        prompt_ids: ``[P]`` int64, placeholders expanded.
        prompt_positions: ``[rows, P]`` int64 positions of the prompt, 3 rows for M-RoPE.
        completion_start: Position of the first completion token, on all rows.
        media: The prompt's images and videos, in placeholder order.
        completions: n tensors ``[R_i]`` int64.
    """

    prompt_ids: torch.Tensor
    prompt_positions: torch.Tensor
    completion_start: int
    media: tuple[PreparedMedia, ...]
    completions: tuple[torch.Tensor, ...]

    def completion_positions(self, index: int) -> torch.Tensor:
        """``[rows, R_i]``."""
        steps = torch.arange(len(self.completions[index]))
        return (self.completion_start + steps).expand(len(self.prompt_positions), -1)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per completion token, ``[B, R]`` float32, sequences in group order, 0 beyond their ends.

    Attributes:
        logprobs: Log-probability of the token, temperature applied.
        entropy: Entropy of the distribution it was drawn from, in nats.
        kl: KL over the whole vocabulary to a reference's distribution; None unless asked for.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor | None = None


class ModelInputs:
    """The model inputs of rollout groups, each built once for a batch of groups.

    Those of the last batch are kept. In a training step policy, reference and critic share one
    ``ModelInputs``, so log-probs, values and all epochs of the update use what was built first.
    Groups are told apart by identity.

    Attributes:
        family: That of the models.
    """

    def __init__(self, family: ModelFamily, media: MediaCache) -> None:
        self.family = family
        self._media = media
        self._last: dict[int, tuple[RolloutGroup, GroupInput]] = {}

    def of(self, groups: Sequence[RolloutGroup]) -> list[GroupInput]:
        """Their inputs, in order."""
        # A group is kept beside its inputs, so that no other object can take over its id.
        self._last = {
            id(g): self._last.get(id(g)) or (g, group_input(self.family, self._media, g))
            for g in groups
        }
        return [self._last[id(group)][1] for group in groups]


def group_input(family: ModelFamily, media: MediaCache, group: RolloutGroup) -> GroupInput:
    """The model inputs of a rollout group."""
    prepared = tuple(media[m] for m in group.prompt.media)
    prompt_ids = family.expand_placeholders(group.prompt.token_ids, prepared)
    positions = family.prompt_positions(prompt_ids, prepared)
    return GroupInput(
        prompt_ids=torch.tensor(prompt_ids),
        prompt_positions=positions,
        completion_start=family.completion_start(positions),
        media=prepared,
        completions=tuple(torch.tensor(c.token_ids) for c in group.completions),
    )


def completion_batch(groups: Sequence[GroupInput]) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions of all groups, right-padded with 0: ids and mask, ``[B, R]`` each."""
    rows = [row for group in groups for row in group.completions]
    return pad_sequence(rows, batch_first=True), length_mask([len(row) for row in rows])


def completion_mask(groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """``[B, R]`` bool: where the groups' completions have a token."""
    return length_mask([len(c.token_ids) for g in groups for c in g.completions])


def length_mask(lengths: Sequence[int]) -> torch.Tensor:
    """``[B, max(lengths)]`` bool: True at the first ``lengths[b]`` places of row b."""
    return torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
