"""Attention of the vision tower: on a GPU the windows of all media in one call a layer.

transformers' SDPA attention calls the kernel once per window, which is 64 times a layer for an
image of 1,024 tokens. Registered with transformers as ``"mmr1_flash"``: the "flash" makes it hand
over all windows together, with their ends. Without ``windows``, where others call a tower that is
set to it, and without a kernel for windows of unequal length it is that SDPA attention. A CPU does
that as fast: moving windows of one length together took longer there.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mmr1.attention import Blocks, attend, attend_backward, has_varlen_kernel

NAME = "mmr1_flash"


class Windows:
    """The windows of attention in one call of the tower, by the tensor of ends of a layer.

    The layers share two: that of the windows, and that of whole images or frames. Their lengths
    are known before they are moved to the GPU, which would be waited for to read them there.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, Blocks]] = {}

    def moved(self, ends: torch.Tensor, device: torch.device) -> torch.Tensor:
        """``ends`` ``[windows + 1]``, cumulative lengths from 0, on the device."""
        lengths = tuple(ends.diff().tolist())
        there = ends.to(device, non_blocking=True)
        blocks = Blocks(lengths, lengths, causal=False, device=device)
        self._made[id(there)] = there, blocks  # the tensor is kept, so its id stays its own
        return there

    def blocks(self, ends: torch.Tensor) -> Blocks:
        """The blocks of ends that ``moved`` returned."""
        return self._made[id(ends)][1]


def use(tower: Any) -> Windows:
    """Set the tower to this attention; returns the windows to call it with.

    It stays after the call, since checkpointed blocks run again in the backward pass; a new model
    made from this very configuration object would be refused by transformers, one loaded is not.
    """
    tower.config._attn_implementation = NAME
    return Windows()


def is_on_gpu(tower: Any) -> bool:
    return tower.patch_embed.proj.weight.device.type != "cpu"


def tower_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    windows: Windows | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: ``[1, H, T, D]`` in, ``[1, T, H, D]`` out."""
    assert attention_mask is None, "the tower's windows have no mask"
    if windows is None or not has_varlen_kernel(value):
        return _window_by_window(module, query, key, value, cu_seq_lens_q, scaling), None
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    return _BlockAttention.apply(*rows, windows.blocks(cu_seq_lens_q), scaling)[None], None


def _window_by_window(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ends: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    lengths = ends.diff().tolist()
    sides = (x.split(lengths, dim=2) for x in (query, key, value))
    outs = [
        sdpa_attention_forward(module, q, k, v, None, scaling=scaling, is_causal=False)[0]
        for q, k, v in zip(*sides, strict=True)
    ]
    return torch.cat(outs, dim=1)


class _BlockAttention(torch.autograd.Function):
    """``[T, H, D]`` queries, keys and values -> ``[T, H, D]``."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        blocks: Blocks,
        scale: float,
    ) -> torch.Tensor:
        out, lse = attend(query, key, value, blocks, scale)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grads = attend_backward(grad_out, query, key, value, out, lse, ctx.blocks, ctx.scale)
        return *grads, None, None


AttentionInterface.register(NAME, tower_attention)
