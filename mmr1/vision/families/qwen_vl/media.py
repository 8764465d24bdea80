"""Media as the Qwen-VL models take them, in transformers and in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.types import MediaKind, MediaRef
from mmr1.vision.budget import PixelBudget, VideoBudget, image_grid
from mmr1.vision.families.family import EngineInput
from mmr1.vision.prepare import Medium
from mmr1.vision.videos import patch_times, sampled_grid, sampled_metadata

PIXELS: tuple[tuple[MediaKind, str], ...] = (
    ("image", "pixel_values"),
    ("video", "pixel_values_videos"),
)
"""The model's argument for the patches of each kind."""


def processed(processor: Any, media: MediaRef, decoded: Any) -> Medium:
    """The processor's output for one medium's pixels, which have the size for the model."""
    own = _own(processor, media)
    metadata = None
    given: dict[str, Any] = {"images": [decoded]}
    if media.kind == "video":
        frames, metadata = decoded
        given = {"videos": [frames], "video_metadata": [metadata], "do_sample_frames": False}
    batch = own(**given, do_resize=False, return_tensors="pt")
    t, h, w = batch[f"{media.kind}_grid_thw"][0].tolist()
    return _described(own, media, (t, h, w), metadata, batch[dict(PIXELS)[media.kind]].float())


def measured_image(
    processor: Any, media: MediaRef, size: tuple[int, int], budget: PixelBudget
) -> Medium:
    """The measurements of an image of this size: output of :func:`processed` without patches."""
    try:
        grid = image_grid(*size, budget.of(media.options))
    except ValueError as error:
        raise ValueError(f"{media}: {error}") from error
    return _described(_own(processor, media), media, grid, None)


def measured_video(processor: Any, media: MediaRef, budget: VideoBudget) -> Medium:
    """The measurements of a video, by its header: output of :func:`processed` without patches."""
    grid, metadata = sampled_grid(media, budget), sampled_metadata(media, budget)
    return _described(_own(processor, media), media, grid, metadata)


def _own(processor: Any, media: MediaRef) -> Any:
    return getattr(processor, f"{media.kind}_processor")


def _described(
    processor: Any,
    media: MediaRef,
    grid: tuple[int, int, int],
    metadata: Any,
    stored: torch.Tensor | None = None,
) -> Medium:
    seconds, times = (None, ()) if metadata is None else _times(processor, metadata)
    return Medium(
        kind=media.kind,
        stored=stored,
        grid=grid,
        merge=processor.merge_size,
        seconds_per_grid=seconds,
        digest=media.digest(),
        patch_size=processor.patch_size,
        times=times,
    )


def _times(processor: Any, metadata: Any) -> tuple[float, tuple[float, ...]]:
    """Seconds between two temporal patches of a video, and the time of each."""
    seconds = processor.temporal_patch_size / metadata.sampled_fps
    shown = [index / metadata.fps for index in metadata.frames_indices]
    return seconds, tuple(patch_times(shown, processor.temporal_patch_size))


def media_inputs(media: Sequence[Medium]) -> dict[str, torch.Tensor]:
    """The media arguments: ``[sum N, D]`` patches and ``[M, 3]`` grids, per kind."""
    inputs: dict[str, torch.Tensor] = {}
    for kind, pixels in PIXELS:
        chosen = [m for m in media if m.kind == kind]
        if chosen:
            patches = [m.patches for m in chosen]
            inputs[pixels] = torch.cat(patches) if len(patches) > 1 else patches[0]
            inputs[f"{kind}_grid_thw"] = torch.tensor([m.grid for m in chosen])
    return inputs


def engine_inputs(media: Sequence[Medium], timed: bool) -> dict[str, EngineInput]:
    """See ``ModelFamily.engine_inputs``; ``timed`` models take the seconds between patches."""
    arguments = media_inputs(media)
    inputs: dict[str, EngineInput] = {}
    for kind, pixels in PIXELS:
        if pixels in arguments:
            grids = arguments[f"{kind}_grid_thw"]
            inputs[pixels] = EngineInput(kind, arguments[pixels], grids.prod(-1))
            inputs[f"{kind}_grid_thw"] = EngineInput(kind, grids)
    seconds = [m.seconds_per_grid for m in media if m.seconds_per_grid is not None]
    if timed and seconds:
        # Doubles, as in mrope.py: in single precision patch 3 of 7/12 s has position 6 and not 7.
        exact = torch.tensor(seconds, dtype=torch.float64)
        inputs["second_per_grid_ts"] = EngineInput("video", exact)
    return inputs
