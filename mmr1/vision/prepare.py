"""Media as the model reads them: patches and grids, made by the model's own processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import torch

from mmr1.types import MediaRef


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """One image or video, ready for the vision tower.

    Attributes:
        kind: ``"image"`` or ``"video"``.
        patches: ``[t * h * w, patch_dim]`` float32, normalised pixels in the tower's patch order.
        grid: ``(t, h, w)`` in patches, before the spatial merge.
        merge: Side of the square of patches that becomes one token.
        seconds_per_grid: Seconds between two temporal positions (video only).
        digest: Identity of the medium; equal digests have equal patches.
        patch_size: Side of a patch in pixels.
    """

    kind: Literal["image", "video"]
    patches: torch.Tensor
    grid: tuple[int, int, int]
    merge: int
    seconds_per_grid: float | None
    digest: str
    patch_size: int = 14

    @property
    def pixels(self) -> tuple[int, int]:
        """``(width, height)`` as the model sees it, after resizing."""
        _, h, w = self.grid
        return w * self.patch_size, h * self.patch_size

    @property
    def tokens(self) -> int:
        """Merged vision tokens: the length of its placeholder run in the prompt."""
        t, h, w = self.grid
        return t * h * w // self.merge**2


def media_inputs(media: Sequence[PreparedMedia]) -> dict[str, torch.Tensor]:
    """The model's pixel and grid arguments: ``[sum N, D]`` patches, ``[M, 3]`` grids, per kind."""
    inputs: dict[str, torch.Tensor] = {}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        chosen = [m for m in media if m.kind == kind]
        if chosen:
            inputs[pixels] = torch.cat([m.patches for m in chosen])
            inputs[grid] = torch.tensor([m.grid for m in chosen])
    return inputs


class MediaCache:
    """Prepared media by digest: one processor call per medium, however many prompts use it.

    Bounded by the bytes of the patches; the least recently used go first. Threads may share it.
    """

    def __init__(
        self, prepare: Callable[[MediaRef], PreparedMedia], max_bytes: int = 2 * 1024**3
    ) -> None:
        self._prepare = prepare
        self._max_bytes = max_bytes
        self._kept: dict[str, PreparedMedia] = {}
        self._bytes = 0
        self._lock = Lock()
        self.processor_calls = 0

    def __getitem__(self, media: MediaRef) -> PreparedMedia:
        with self._lock:
            return self._get(media)

    def _get(self, media: MediaRef) -> PreparedMedia:
        digest = media.digest()
        found = self._kept.pop(digest, None)
        if found is None:
            found = self._prepare(media)
            self.processor_calls += 1
            self._bytes += found.patches.nbytes
        self._kept[digest] = found  # re-inserted last: dicts keep insertion order
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.patches.nbytes
        return found
