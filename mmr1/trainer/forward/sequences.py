"""What goes through the network: a prompt, its media and the completions that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.types import RolloutGroup
from mmr1.vision.families.qwen2_5_vl import Family, expand_placeholders, prompt_positions
from mmr1.vision.prepare import MediaCache, PreparedMedia


@dataclass(frozen=True, slots=True)
class GroupInput:
    """One prompt and its completions, as tensors.

    Attributes:
        prompt_ids: ``[P]`` int64, placeholders expanded.
        prompt_positions: ``[3, P]`` int64 M-RoPE positions of the prompt.
        media: The prompt's images and videos, in placeholder order.
        completions: n tensors ``[R_i]`` int64.
    """

    prompt_ids: torch.Tensor
    prompt_positions: torch.Tensor
    media: tuple[PreparedMedia, ...]
    completions: tuple[torch.Tensor, ...]

    def completion_positions(self, index: int) -> torch.Tensor:
        """``[3, R_i]``: all rows go on from the prompt's largest position."""
        start = int(self.prompt_positions.max()) + 1
        return torch.arange(start, start + len(self.completions[index])).expand(3, -1)


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


def group_input(
    family: Family, media: MediaCache, group: RolloutGroup, keep: Sequence[int] | None = None
) -> GroupInput:
    """Tensors of a rollout group, or of those of its completions whose indices are in ``keep``."""
    prepared = tuple(media[m] for m in group.prompt.media)
    prompt_ids = expand_placeholders(family, group.prompt.token_ids, prepared)
    chosen = range(len(group.completions)) if keep is None else keep
    return GroupInput(
        prompt_ids=torch.tensor(prompt_ids),
        prompt_positions=prompt_positions(family, prompt_ids, prepared),
        media=prepared,
        completions=tuple(torch.tensor(group.completions[i].token_ids) for i in chosen),
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
