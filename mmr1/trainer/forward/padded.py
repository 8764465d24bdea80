"""The plain forward: every sequence whole, padded to the longest.

Slow, and short enough to be read and believed. The packed forward is compared with it in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.trainer.forward.logprob_head import FORBIDDEN
from mmr1.trainer.forward.sequences import GroupInput, TokenScores, completion_batch
from mmr1.vision.families.family import PackedArchitecture
from mmr1.vision.families.loading import model_parts, packed_architecture_of
from mmr1.vision.prepare import Medium


def padded_scores(
    model: Any,
    groups: Sequence[GroupInput],
    temperature: float,
    forbidden_ids: Sequence[int] = (),
) -> TokenScores:
    """Log-probs and entropies of all completion tokens, by one padded batch. Differentiable.

    Args:
        model: A transformers model of a known family.
        groups: B sequences in all.
        temperature: That of the rollout; the logits are divided by it.
        forbidden_ids: Tokens outside the policy's vocabulary; their probability is 0.
    """
    device = model.device
    hidden = padded_hidden(model, groups)
    completion_ids, mask = completion_batch(groups)
    # The logits at position p predict the token at p + 1: row b's completion starts at prompt_b.
    prompt_lengths = torch.tensor([len(g.prompt_ids) for g in groups for _ in g.completions])
    columns = prompt_lengths[:, None] - 1 + torch.arange(completion_ids.shape[1])
    rows = torch.arange(len(prompt_lengths))[:, None].expand_as(columns)
    states = hidden[rows[mask], columns[mask]]
    logits = model_parts(model).lm_head(states).float() / temperature  # [N, V]
    logits[:, list(forbidden_ids)] = FORBIDDEN

    log_distribution = logits.log_softmax(-1)
    targets = completion_ids[mask].to(device)
    logprobs = log_distribution.gather(-1, targets[:, None])[:, 0]
    entropy = -(log_distribution.exp() * log_distribution).sum(-1)
    return TokenScores(_scatter(logprobs, mask), _scatter(entropy, mask))


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
