"""The forward of transformers itself: each completion with a prompt of its own.

For models whose layers cannot share a prompt. The completions of a
group are one padded batch, and each of them computes the prompt and its media again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.trainer.forward.body import body_of
from mmr1.trainer.forward.sequences import (
    CompletionStates,
    GroupInput,
    PaddedRows,
    Read,
    completion_batch,
    length_mask,
)
from mmr1.vision.families.loading import model_parts, unwrapped
from mmr1.vision.families.rows import arguments_of_rows


def unshared_states(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    run_tower: bool = False,
) -> CompletionStates:
    """See ``scores.completion_states``. On ranks there must be one group, as everywhere."""
    base = unwrapped(model)
    completion_ids, mask = completion_batch(groups)
    padded = PaddedRows((len(mask), mask.shape[1]), mask.nonzero().T.to(base.device))
    apart = [group.unforked() for group in groups]
    with vision_in_graph(base) if run_tower else nullcontext():
        hidden = torch.cat([_group_states(base, group, read) for group in apart])
    sampled = mask[length_mask([len(row) for g in groups for row in g.completions])]
    rows = torch.cat([_read_rows(group, read) for group in apart])[sampled].to(base.device)
    return CompletionStates(hidden[sampled], completion_ids[mask].to(base.device), padded, rows)


def _read_rows(group: GroupInput, read: Read) -> torch.Tensor:
    """Return where each of the N tokens is read among the ``[n * T]`` of a group's forward."""
    lengths = [len(row) for row in group.completions]
    first = len(group.prompt_ids) - (read == "before")
    width = len(group.prompt_ids) + max(lengths)
    return torch.cat([n * width + first + torch.arange(k) for n, k in enumerate(lengths)])


def _group_states(base: Any, group: GroupInput, read: Read) -> torch.Tensor:
    """Hidden states ``[N, H]`` of one group's completions, by the model without a head."""
    rows = [torch.cat([group.prompt_ids, row]) for row in group.completions]
    # Padded with a token that was sampled: another might be a placeholder of an image.
    ids = pad_sequence(rows, batch_first=True, padding_value=int(rows[0][-1]))
    prompt, width = len(group.prompt_ids), ids.shape[1]
    # Of a sharded model the precision of what is gathered; its own weights are in float32.
    dtype = base.get_input_embeddings().weight.dtype
    pieces = [group.pieces(i, len(row)) for i, row in enumerate(group.completions)]
    hidden = body_of(base)(
        input_ids=ids.to(base.device),
        attention_mask=length_mask([len(row) for row in rows]).long().to(base.device),
        use_cache=False,
        **arguments_of_rows(pieces, width, base.device, dtype),
    ).last_hidden_state
    first = prompt - 1 if read == "before" else prompt
    lengths = [len(row) for row in group.completions]
    return torch.cat([hidden[i, first : first + n] for i, n in enumerate(lengths)])


@contextmanager
def vision_in_graph(base: Any) -> Iterator[None]:
    """Give all trained parameters of tower and projector a gradient, even if it is 0.

    Ranks add up the gradients of the same parameters, layer by layer in the same order, and one of
    them may have nothing to see, or images where another has videos. To run the tower on something
    blank would not do: forwards call it as often as they like, so it is not sharded by its blocks.
    """
    parts = model_parts(base)
    language = {id(p) for m in (parts.language_model, parts.lm_head) for p in m.parameters()}
    seeing = [p for p in base.parameters() if p.requires_grad and id(p) not in language]

    def add_nothing(_: Any, __: Any, embeddings: torch.Tensor) -> torch.Tensor:
        for parameter in seeing:
            embeddings = embeddings + 0 * parameter.flatten()[0].to(embeddings.dtype)
        return embeddings

    hook = parts.embed_tokens.register_forward_hook(add_nothing)
    try:
        yield
    finally:
        hook.remove()
