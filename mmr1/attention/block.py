"""Softmax attention of one batch of equal shapes that also tells its log-sum-exp.

With it, attention over two sets of keys can be computed in two calls and merged: a completion's
queries meet the prompt that a whole group shares in one call, and their own tokens in another, and
nothing is copied per completion. The training forward and the decoding of rollouts rest on this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def block_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One padded batch, ``[B, H, L, D]``: output and log-sum-exp ``[B, H, L]``."""
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, lse
    return dense_forward(query, key, value, mask, causal, scale)


def block_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
) -> Gradients:
    """Gradients of ``block_forward`` for its output."""
    if query.device.type == "cpu":
        # In half precision this kernel takes 2 to 5 times as long as in float32.
        dtype = torch.promote_types(query.dtype, torch.float32)
        floats = (x.to(dtype) for x in (grad_out, query, key, value, out))
        mask = None if mask is None else mask.to(dtype)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *floats, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
        return grads[0].to(query.dtype), grads[1].to(query.dtype), grads[2].to(query.dtype)
    return dense_backward(grad_out, query, key, value, mask, out, lse, causal, scale)


def dense_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``block_forward`` by matrix products, for devices and precisions without a kernel."""
    scores = _scores(query, key, mask, causal, scale)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(value.dtype) @ value, lse


def dense_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
) -> Gradients:
    """Gradients of ``dense_forward`` for its output."""
    weights = (_scores(query, key, mask, causal, scale) - lse[..., None]).exp()
    grad_value = weights.to(grad_out.dtype).transpose(-1, -2) @ grad_out
    grad_weights = (grad_out @ value.transpose(-1, -2)).float()
    delta = (grad_out.float() * out.float()).sum(-1, keepdim=True)
    grad_scores = (weights * (grad_weights - delta) * scale).to(query.dtype)
    return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, grad_value


def _scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float
) -> torch.Tensor:
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def additive_mask(valid: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``[B, L]`` bool, True for real keys, to ``[B, 1, 1, L]``: minus infinity on the others."""
    mask = torch.zeros(valid.shape, dtype=dtype, device=valid.device)
    return mask.masked_fill_(~valid, -math.inf)[:, None, None, :]


def merge(
    first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two sets of keys, from the attention over each."""
    (out_1, lse_1), (out_2, lse_2) = first, second
    lse = torch.logaddexp(lse_1, lse_2)
    out = out_1 * (lse_1 - lse).exp()[..., None] + out_2 * (lse_2 - lse).exp()[..., None]
    return out.to(out_1.dtype), lse


VARIANTS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention functions that change what is computed."""

DROPPED_BY_SDPA = ("softcap", "s_aux")
"""Those that transformers' SDPA attention takes and leaves out; a window is in its mask."""


def require_supported_attention(
    arguments: Mapping[str, Any], variants: Sequence[str] = VARIANTS
) -> None:
    """Refuse a layer with another kind of attention, as ignoring its argument would be silent.

    Raises:
        ValueError: Names the argument.
    """
    for name in variants:
        if arguments.get(name) is not None:
            raise ValueError(
                f"the model's attention has a {name}, which mmr1's attention does not compute; "
                "take a model with full causal attention in all layers (docs/models.md)"
            )
