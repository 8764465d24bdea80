"""Qwen2.5-VL's vision tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mmr1.vision import tower_attention
from mmr1.vision.prepare import PreparedMedia


def run_tower(tower: Any, media: Sequence[PreparedMedia]) -> Sequence[torch.Tensor]:
    """Features ``[tokens, H]`` of each medium."""
    weight = tower.patch_embed.proj.weight
    grid = torch.tensor([m.grid for m in media], device=weight.device)
    pixels = torch.cat([m.patches for m in media]).to(weight.device, weight.dtype)
    with _PatchesAsRows():
        output = tower(pixels, grid_thw=grid, **tower_attention.arguments(tower)).pooler_output
    return output.split([m.tokens for m in media])


def blank_medium(tower: Any) -> PreparedMedia:
    """A black image of a single token."""
    merge = tower.spatial_merge_size
    patch_dim = tower.patch_embed.proj.weight[0].numel()
    black = torch.zeros(merge * merge, patch_dim)
    return PreparedMedia("image", black, (1, merge, merge), merge, None, digest="blank")


class _PatchesAsRows(TorchFunctionMode):
    """Computes a convolution whose kernel is its whole input as the matrix product that it is.

    That is the tower's patch embedding; as a convolution in bf16 it took a fifth of the step.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.conv3d and args[0].shape[1:] == args[1].shape[1:]:
            patches, weight, bias, *_ = args
            return F.linear(patches.flatten(1), weight.flatten(1), bias)[:, :, None, None, None]
        return func(*args, **(kwargs or {}))
