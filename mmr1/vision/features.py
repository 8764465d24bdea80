"""Images and videos through the vision tower: each once, and once for all with a frozen tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mmr1.vision import tower_attention
from mmr1.vision.prepare import PreparedMedia


class FeatureCache:
    """Features ``[tokens, H]`` by the digest of the medium; the least recently used go first.

    One cache serves every model whose (frozen) tower has the same weights: rollouts, log-probs,
    reference, update and all epochs.
    """

    def __init__(self, max_bytes: int = 2 * 1024**3) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, torch.Tensor] = {}
        self._bytes = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, digest: str) -> torch.Tensor:
        rows = self._kept.pop(digest)
        self._kept[digest] = rows  # re-inserted last: dicts keep insertion order
        return rows

    def __setitem__(self, digest: str, rows: torch.Tensor) -> None:
        assert not rows.requires_grad, "features of a trained tower change every step"
        assert digest not in self._kept, "features are made once"
        self._kept[digest] = rows.clone()  # a slice would keep the whole batch alive
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes and self._kept:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.nbytes


def encode_media(
    tower: Any, media: Sequence[PreparedMedia], features: FeatureCache | None = None
) -> torch.Tensor:
    """Features of media, concatenated: ``[sum of medium.tokens, H]``. Equal media are encoded once.

    What is to be kept is encoded one medium at a time: rounding depends on what else is in a batch,
    and a resumed run meets its media in other company.

    Raises:
        ValueError: Features are to be kept, but the tower is being trained.
    """
    frozen = not any(p.requires_grad for p in tower.parameters())
    if features is not None and not frozen:
        raise ValueError("vision features can only be kept where the vision tower is frozen")
    found = {m.digest: features[m.digest] for m in media if features and m.digest in features}
    missing = list({m.digest: m for m in media if m.digest not in found}.values())
    batches = [missing] if features is None and missing else [[m] for m in missing]
    for batch in batches:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            made = _run_tower(tower, batch)
        for medium, rows in zip(batch, made, strict=True):
            found[medium.digest] = rows
            if features is not None:
                features[medium.digest] = rows
    return torch.cat([found[m.digest] for m in media])


def encode_nothing(tower: Any) -> torch.Tensor:
    """``[1, H]``: the features of a single black token, to take part in a sharded tower's calls."""
    merge = tower.spatial_merge_size
    patch_dim = tower.patch_embed.proj.weight[0].numel()
    black = torch.zeros(merge * merge, patch_dim)
    return _features(tower, black, [(1, merge, merge)])


def _run_tower(tower: Any, media: Sequence[PreparedMedia]) -> tuple[torch.Tensor, ...]:
    output = _features(tower, torch.cat([m.patches for m in media]), [m.grid for m in media])
    return output.split([m.tokens for m in media])


def _features(
    tower: Any, patches: torch.Tensor, grids: Sequence[tuple[int, int, int]]
) -> torch.Tensor:
    weight = tower.patch_embed.proj.weight
    grid = torch.tensor(grids, device=weight.device)
    pixels = patches.to(weight.device, weight.dtype)
    with _PatchesAsRows():
        return tower(pixels, grid_thw=grid, **tower_attention.arguments(tower)).pooler_output


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
