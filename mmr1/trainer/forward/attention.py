"""Attention of a packed sequence whose completions share their prompt.

The sequence is ``[prefix 1 | ... | prefix G | suffix 1 | ... | suffix B]``: a prefix is a prompt, a
suffix one of its completions. Tokens of a prefix attend causally to their prefix, those of a suffix
to the whole of its prefix and causally to their suffix. Nothing is padded or copied per completion
and no mask of tokens by tokens exists.

Registered with transformers as ``"mmr1"``. (A name with "flash" in it would make transformers
rearrange masks and positions on its own.) Without a layout it is transformers' SDPA attention, so a
model set to it still generates and still takes padded batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmr1.attention.block import DROPPED_BY_SDPA, merge, require_supported_attention
from mmr1.attention.varlen import Blocks, attend, attend_backward

NAME = "mmr1"


class Layout(Protocol):
    """Computes attention of a packed sequence, or of one rank's part of it.

    Attributes:
        calls: One entry per layer that ran on this layout; the forward checks their number,
            because a layer that fell back to plain attention would mix the sequences silently.
    """

    @property
    def calls(self) -> list[None]: ...

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """``[T, H, D]`` queries, ``[T, H_kv, D]`` keys and values -> ``[T, H, D]``."""
        ...


@dataclass(frozen=True)
class AttentionLayout:
    """A ``Layout`` of a whole sequence.

    Attributes:
        prefixes: Causal blocks of the prefixes.
        suffixes: Causal blocks of the suffixes.
        shared: Each prefix's suffixes, all together, to that prefix.
    """

    prefixes: Blocks
    suffixes: Blocks
    shared: Blocks
    calls: list[None] = field(default_factory=list)

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return _SharedPrefixAttention.apply(query, key, value, self, scale)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: ``[1, H, T, D]`` in, ``[1, T, H, D]`` out."""
    if layout is None:
        require_supported_attention(kwargs, DROPPED_BY_SDPA)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    require_supported_attention(kwargs)
    assert dropout == 0, "packed attention has no dropout"
    masked = attention_mask is not None and attention_mask.numel() > 0
    assert not masked, "a packed sequence has no mask"
    assert query.shape[0] == 1, "a packed batch is one sequence"
    assert query.shape[2] == key.shape[2], "packing does not go with a key-value cache"
    layout.calls.append(None)
    # Under autocast the rotary embedding leaves queries and keys in float32.
    queries, keys, values = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return layout.attention(queries, keys, values, scaling)[None], None


class _SharedPrefixAttention(torch.autograd.Function):
    """``[T, H, D]`` queries, ``[T, H_kv, D]`` keys and values -> ``[T, H, D]``."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: AttentionLayout,
        scale: float,
    ) -> torch.Tensor:
        n = sum(layout.prefixes.q_lengths)
        out, lse = attend(query[:n], key[:n], value[:n], layout.prefixes, scale)
        if n < len(query):
            own = attend(query[n:], key[n:], value[n:], layout.suffixes, scale)
            shared = attend(query[n:], key[:n], value[:n], layout.shared, scale)
            suffix_out, suffix_lse = merge(own, shared)
            out, lse = torch.cat([out, suffix_out]), torch.cat([lse, suffix_lse])
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        n = sum(layout.prefixes.q_lengths)
        prefix = (grad_out[:n], query[:n], key[:n], value[:n], out[:n], lse[:n])
        dq, dk, dv = attend_backward(*prefix, layout.prefixes, scale)
        if n < len(query):
            ends = (out[n:], lse[n:])
            own = attend_backward(
                grad_out[n:], query[n:], key[n:], value[n:], *ends, layout.suffixes, scale
            )
            shared = attend_backward(
                grad_out[n:], query[n:], key[:n], value[:n], *ends, layout.shared, scale
            )
            dq = torch.cat([dq, own[0] + shared[0]])
            dk = torch.cat([dk + shared[1], own[1]])
            dv = torch.cat([dv + shared[2], own[2]])
        return dq, dk, dv, None, None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
