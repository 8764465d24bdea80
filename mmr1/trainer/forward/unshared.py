"""The forward of transformers itself: each completion with a prompt of its own.

For models whose layers cannot share a prompt, or that no family here knows. The completions of a
group are one padded batch, and each of them computes the prompt and its media again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.adapters import unwrapped
from mmr1.trainer.forward.sequences import GroupInput, completion_batch, length_mask
from mmr1.trainer.forward.states import CompletionStates, PaddedRows, Read
from mmr1.vision.families.rows import arguments_of_rows


def unshared_states(
    model: Any, groups: Sequence[GroupInput], read: Read = "before"
) -> CompletionStates:
    """See ``scores.completion_states``."""
    base = unwrapped(model)
    completion_ids, mask = completion_batch(groups)
    padded = PaddedRows((len(mask), mask.shape[1]), mask.nonzero().T.to(base.device))
    hidden = torch.cat([_group_states(base, group, read) for group in groups])
    hidden = hidden[mask[length_mask([len(row) for g in groups for row in g.completions])]]
    return CompletionStates(hidden, completion_ids[mask].to(base.device), padded)


def _group_states(base: Any, group: GroupInput, read: Read) -> torch.Tensor:
    """``[N, H]`` of one group's completions. The base model is the one without a head."""
    rows = [torch.cat([group.prompt_ids, row]) for row in group.completions]
    # Padded with a token that was sampled: another might be a placeholder of an image.
    ids = pad_sequence(rows, batch_first=True, padding_value=int(rows[0][-1]))
    prompt, (count, width) = len(group.prompt_ids), ids.shape
    arguments = arguments_of_rows(group.arguments, prompt, count, width, base.device, base.dtype)
    hidden = base.base_model(
        input_ids=ids.to(base.device),
        attention_mask=length_mask([len(row) for row in rows]).long().to(base.device),
        use_cache=False,
        **arguments,
    ).last_hidden_state
    first = prompt - 1 if read == "before" else prompt
    lengths = [len(row) for row in group.completions]
    return torch.cat([hidden[i, first : first + n] for i, n in enumerate(lengths)])
