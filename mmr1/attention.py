"""Softmax attention over blocks of unequal length, with its log-sum-exp, without autograd.

A query that attends to two sets of keys can be computed in two calls that are merged by their
log-sum-exp: a completion's queries meet the prompt that a whole group shares in one call, and their
own tokens in another, and nothing is copied per completion. The training forward and the decoding
of rollouts rest on this. Given the merged output and log-sum-exp, each call's backward is exactly
its share of the gradient (the identity behind ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
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


# Blocks of different size share a padded batch while the padding costs less than a separate call
# would; so many score entries take about as long as the overhead of a call.
PADDING_RATIO = 1.25
PADDING_ENTRIES = 1 << 16


@dataclass(frozen=True)
class Blocks:
    """Block i: the next ``q_lengths[i]`` queries attend to the next ``k_lengths[i]`` keys.

    Attributes:
        causal: Within a block, query j sees keys 0..j (the two lengths are then equal).
        device: Where the index tensors live.
    """

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    causal: bool
    device: torch.device

    @cached_property
    def buckets(self) -> list[list[int]]:
        """Blocks by padded batch, those of similar size together; blocks without queries left out.

        Sorted by size, a block joins the current bucket while padding stays below a quarter.
        """
        areas = list(zip(self.k_lengths, self.q_lengths, strict=True))
        made: list[list[int]] = []
        real = longest_q = longest_k = 0
        for i in sorted(range(len(areas)), key=areas.__getitem__, reverse=True):
            k, q = areas[i]
            if q == 0:
                continue
            real, longest_q, longest_k = real + q * k, max(longest_q, q), max(longest_k, k)
            allowed = PADDING_RATIO * real + PADDING_ENTRIES
            if made and (len(made[-1]) + 1) * longest_q * longest_k <= allowed:
                made[-1].append(i)
            else:
                made.append([i])
                real, longest_q, longest_k = q * k, q, k
        for bucket in made:
            bucket.sort()
        return made

    @cached_property
    def paddings(self) -> tuple[Padding, Padding]:
        """The paddings of the queries and of the keys."""
        buckets, device = self.buckets, self.device
        queries = Padding.of(self.q_lengths, buckets, device)
        return queries, Padding.of(self.k_lengths, buckets, device)

    @cached_property
    def q_offsets(self) -> torch.Tensor:
        return _offsets(self.q_lengths, self.device)

    @cached_property
    def k_offsets(self) -> torch.Tensor:
        return _offsets(self.k_lengths, self.device)


def _offsets(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """``[B + 1]`` int32 cumulative lengths, as the varlen kernels want them."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return ends.to(torch.int32).to(device, non_blocking=True)


@dataclass(frozen=True)
class Padding:
    """Moves packed rows into the padded batches of the buckets, and back.

    Attributes:
        shapes: ``(blocks, longest)`` of each bucket.
        source: Packed row of every padded row (padding reads row 0), None when nothing moves.
        rows, slots: Packed rows that are in a bucket, and their padded rows; None as above.
        valid: Per bucket ``[blocks, longest]`` bool, None where there is no padding.
        total: Number of packed rows.
    """

    shapes: list[tuple[int, int]]
    source: torch.Tensor | None
    rows: torch.Tensor | None
    slots: torch.Tensor | None
    valid: list[torch.Tensor | None]
    total: int

    @staticmethod
    def of(lengths: Sequence[int], buckets: list[list[int]], device: torch.device) -> Padding:
        lengths_t = torch.tensor(lengths, dtype=torch.int64)
        starts = lengths_t.cumsum(0) - lengths_t
        shapes, sources, valid = [], [], []
        for bucket in buckets:
            steps = torch.arange(int(lengths_t[bucket].max()))
            inside = steps < lengths_t[bucket, None]
            sources.append(torch.where(inside, starts[bucket, None] + steps, -1).flatten())
            shapes.append((len(bucket), len(steps)))
            valid.append(None if inside.all() else inside.to(device))
        source = torch.cat(sources) if sources else torch.zeros(0, dtype=torch.int64)
        total = int(lengths_t.sum())
        if torch.equal(source, torch.arange(total)):
            return Padding(shapes, None, None, None, valid, total)
        slots = (source >= 0).nonzero()[:, 0]
        rows = source[slots]
        source = source.clamp(min=0)
        return Padding(shapes, source.to(device), rows.to(device), slots.to(device), valid, total)

    def pad(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """``[T, H, ...]`` to one ``[blocks, H, longest, ...]`` per bucket."""
        moved = packed if self.source is None else packed.index_select(0, self.source)
        pieces = moved.split([blocks * longest for blocks, longest in self.shapes])
        return [p.unflatten(0, s).transpose(1, 2) for p, s in zip(pieces, self.shapes, strict=True)]

    def unpad(self, padded: list[torch.Tensor]) -> torch.Tensor:
        """The inverse of ``pad``: padding dropped, rows that are in no bucket 0."""
        flat = torch.cat([p.transpose(1, 2).flatten(0, 1) for p in padded])
        if self.rows is None or self.slots is None:
            return flat
        out = flat.new_zeros(self.total, *flat.shape[1:])
        return out.index_copy_(0, self.rows, flat.index_select(0, self.slots))


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: Blocks, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention within blocks.

    Args:
        query: ``[Tq, H, D]``.
        key, value: ``[Tk, H_kv, D]``; H is a multiple of H_kv (grouped-query attention).

    Returns:
        Output ``[Tq, H, D]`` and log-sum-exp of the scaled scores ``[Tq, H]`` float32.
    """
    assert not blocks.causal or blocks.q_lengths == blocks.k_lengths, "causal blocks are square"
    if has_varlen_kernel(query):
        return _kernel_forward(query, key, value, blocks, scale)
    repeats = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    q_padding, k_padding = blocks.paddings
    sides = (q_padding.pad(query), k_padding.pad(keys), k_padding.pad(values), k_padding.valid)
    outs, lses = [], []
    for q, k, v, valid in zip(*sides, strict=True):
        # Padded keys of a causal block lie behind every real query: no mask is needed.
        mask = None if valid is None or blocks.causal else additive_mask(valid, q.dtype)
        out, lse = block_forward(q, k, v, mask, blocks.causal, scale)
        outs.append(out)
        lses.append(lse)
    return q_padding.unpad(outs), q_padding.unpad(lses)


def attend_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    blocks: Blocks,
    scale: float,
) -> Gradients:
    """Gradients of query, key and value, in their shapes.

    ``out`` and ``lse`` may be those of a merge of several calls; see the module's docstring.
    """
    if has_varlen_kernel(query):
        return _kernel_backward(grad_out, query, key, value, out, lse, blocks, scale)
    kv_heads, repeats = key.shape[1], query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    q_padding, k_padding = blocks.paddings
    of_queries = (q_padding.pad(x) for x in (query, grad_out, out, lse))
    sides = (*of_queries, k_padding.pad(keys), k_padding.pad(values))
    grads: list[Gradients] = []
    for q, grad, o, row_lse, k, v, q_valid, k_valid in zip(
        *sides, q_padding.valid, k_padding.valid, strict=True
    ):
        if q_valid is not None:  # a padded query attends to nothing: its weights are exp(s - inf)
            row_lse = row_lse.masked_fill(~q_valid[:, None], math.inf)
        mask = None if k_valid is None or blocks.causal else additive_mask(k_valid, q.dtype)
        grads.append(block_backward(grad, q, k, v, mask, o, row_lse, blocks.causal, scale))
    grad_query = q_padding.unpad([g[0] for g in grads])
    grad_key, grad_value = (
        k_padding.unpad([g[i] for g in grads]).unflatten(1, (kv_heads, repeats)).sum(2)
        for i in (1, 2)
    )
    return grad_query, grad_key, grad_value


def has_varlen_kernel(query: torch.Tensor) -> bool:
    """Flash attention, as torch ships it: Ampere or newer, half precision, heads up to 256."""
    head_dim, half = query.shape[-1], query.dtype in (torch.float16, torch.bfloat16)
    if not (query.is_cuda and half and head_dim <= 256 and head_dim % 8 == 0):
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def _longest(blocks: Blocks) -> tuple[int, int]:
    """Upper bounds of the blocks' lengths, by which the kernel sizes its grid.

    At least 2 queries: told that no block has more than one, the kernel reshapes the queries as if
    every block had exactly one, and fails where a block has none.
    """
    return max(2, *blocks.q_lengths), max(blocks.k_lengths)


def _kernel_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: Blocks, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        blocks.q_offsets,
        blocks.k_offsets,
        *_longest(blocks),
        0.0,
        blocks.causal,
        False,
        scale=scale,
    )
    return out, lse.T  # the kernel's is [H, Tq]


def _kernel_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    blocks: Blocks,
    scale: float,
) -> Gradients:
    unused_rng = torch.zeros(2, dtype=torch.uint64, device=query.device)  # there is no dropout
    with _in_order():
        return torch.ops.aten._flash_attention_backward(
            grad_out.contiguous(),
            query,
            key,
            value,
            out,
            lse.T.contiguous(),
            blocks.q_offsets,
            blocks.k_offsets,
            *_longest(blocks),
            0.0,
            blocks.causal,
            unused_rng,
            torch.empty(0, device=query.device),
            scale=scale,
        )


@contextmanager
def _in_order() -> Iterator[None]:
    """Make the kernel deterministic where deterministic operations are asked for.

    With ``warn_only`` it would warn, and add the gradients of keys and values in any order.
    """
    asked = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if asked:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if asked:
            torch.use_deterministic_algorithms(True, warn_only=warn_only)


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
