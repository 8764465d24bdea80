"""The plain forward: every sequence whole, padded to the longest.

Slow, and short enough to be read and believed. The packed forward is compared with it in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.rollout.distribution import FORBIDDEN, PLAIN, Distribution
from mmr1.trainer.forward.sequences import GroupInput, TokenScores, completion_batch
from mmr1.types import Support
from mmr1.vision.families.family import PackedArchitecture
from mmr1.vision.families.loading import model_parts, packed_architecture_of
from mmr1.vision.prepare import Medium


def padded_scores(
    model: Any,
    groups: Sequence[GroupInput],
    distribution: Distribution = PLAIN,
) -> TokenScores:
    """Log-probs and entropies of all completion tokens, by one padded batch. Differentiable.

    Args:
        model: A transformers model of a known family.
        groups: B sequences in all.
        distribution: The one that the tokens were sampled from; see ``completion_scores``.
    """
    device = model.device
    hidden = padded_hidden(model, groups)
    completion_ids, mask = completion_batch(groups)
    # The logits at position p predict the token at p + 1: row b's completion starts at prompt_b.
    prompt_lengths = torch.tensor([len(g.prompt_ids) for g in groups for _ in g.completions])
    columns = prompt_lengths[:, None] - 1 + torch.arange(completion_ids.shape[1])
    rows = torch.arange(len(prompt_lengths))[:, None].expand_as(columns)
    states = hidden[rows[mask], columns[mask]]
    logits = model_parts(model).lm_head(states).float() / distribution.temperature  # [N, V]
    logits[:, list(distribution.forbidden)] = FORBIDDEN
    support = [s for group in groups for s in group.support or ()]
    if not distribution.keeps_all and support:
        logits = logits.where(_kept(support, mask, logits.shape[1]).to(device), FORBIDDEN)

    log_distribution = logits.log_softmax(-1)
    targets = completion_ids[mask].to(device)
    logprobs = log_distribution.gather(-1, targets[:, None])[:, 0]
    entropy = -(log_distribution.exp() * log_distribution).sum(-1)
    return TokenScores(_scatter(logprobs, mask), _scatter(entropy, mask))


def _kept(supports: Sequence[Support | None], mask: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The ids ``[N, vocabulary]`` bool that could be sampled, token by token."""
    rows = []
    for support, sampled in zip(supports, mask, strict=True):
        ids: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sampled)
        if support is not None:
            own = np.split(support.ids, np.cumsum(support.sizes)[:-1])
            ids[: len(own)] = own
        rows += [ids[place] for place in sampled.nonzero()[:, 0].tolist()]
    kept = torch.zeros((len(rows), vocabulary), dtype=torch.bool)
    for row, of_token in zip(kept, rows, strict=True):
        row[torch.from_numpy(of_token).long()] = True
        row |= len(of_token) == 0
    return kept


def padded_hidden(model: Any, groups: Sequence[GroupInput]) -> torch.Tensor:
    """Hidden states of all sequences, ``[B, T, H]``. Differentiable."""
    inputs = _padded_inputs(packed_architecture_of(model), groups)
    on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    return model.model(**on_device, use_cache=False)[0]


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.to(values.device)
    return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values)


def _padded_inputs(
    architecture: PackedArchitecture, groups: Sequence[GroupInput]
) -> dict[str, torch.Tensor]:
    ids, positions = [], []
    media: list[Medium] = []
    for group in groups:
        for index, completion in enumerate(group.completions):
            ids.append(torch.cat([group.prompt_ids, completion]))
            both = [group.prompt_positions, group.completion_positions(index)]
            positions.append(torch.cat(both, dim=1).T)
            media.extend((*group.media, *group.completion_media(index)))
    attention_mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    rope = pad_sequence(positions, batch_first=True).permute(2, 0, 1)  # [rows, B, T]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": attention_mask,
        "position_ids": architecture.position_ids(rope),
        **architecture.media_inputs(media),
    }
