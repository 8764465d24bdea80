"""The vision towers of the Qwen-VL models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from mmr1.vision import tower_attention
from mmr1.vision.prepare import Medium


def run_tower(tower: Any, media: Sequence[Medium]) -> Sequence[torch.Tensor]:
    """Features of each medium: ``[tokens, H]``, and with deepstack ``[tokens, (1 + layers) * H]``.

    Deepstack (arXiv 2406.04334) adds features of inner layers to those of the last, which enter the
    first layers of the language model.
    """
    weight = tower.patch_embed.proj.weight
    grids = torch.tensor([m.grid for m in media])
    pixels = torch.cat([m.patches for m in media]).to(weight.device, weight.dtype)
    layout = _layout(tower, grids) if tower_attention.is_on_gpu(tower) else {}
    with _PatchesAsRows():
        output = tower(pixels, grid_thw=grids.to(weight.device), **layout)
    inner = getattr(output, "deepstack_features", None) or []
    return torch.cat([output.pooler_output, *inner], dim=-1).split([m.tokens for m in media])


def _layout(tower: Any, grids: torch.Tensor) -> dict[str, Any]:
    """Positions and windows of the patches, which transformers would read back from the GPU."""
    device = tower.patch_embed.proj.weight.device
    windows = tower_attention.use(tower)
    frame_ends = get_vision_cu_seqlens(grids)
    layout: dict[str, Any] = {
        "windows": windows,
        "position_ids": get_vision_position_ids(grids, tower.spatial_merge_size),
        "cu_seqlens": windows.moved(frame_ends, device),
        "max_seqlen": int(frame_ends.diff().max()),
    }
    if hasattr(tower, "window_size"):  # Qwen2.5-VL
        order, window_ends = get_vision_window_index(
            grids, tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        layout["window_index"] = order
        layout["cu_window_seqlens"] = windows.moved(window_ends, device)
        layout["max_window_seqlen"] = int(window_ends.diff().max())
    if hasattr(tower, "num_grid_per_side"):  # Qwen3-VL: embeddings of places, interpolated
        layout["interp_indices"], layout["interp_weights"] = (
            get_vision_interpolation_indices_and_weights(
                grids,
                num_grid_per_side=tower.num_grid_per_side,
                mode=tower.interpolation_mode,
                align_corners=tower.interpolation_align_corners,
                spatial_merge_size=tower.spatial_merge_size,
            )
        )
    return {
        name: value.to(device, non_blocking=True)
        if isinstance(value, torch.Tensor) and value.device != device
        else value
        for name, value in layout.items()
    }


def blank_medium(tower: Any) -> Medium:
    """A black image of a single token."""
    merge = tower.spatial_merge_size
    patch_dim = tower.patch_embed.proj.weight[0].numel()
    black = torch.zeros(merge * merge, patch_dim)
    return Medium("image", black, (1, merge, merge), merge, None, digest="blank")


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
