"""Media as the Qwen-VL models take them, in transformers and in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.types import MediaRef
from mmr1.vision.families.family import EngineInput, Kind
from mmr1.vision.prepare import PreparedMedia
from mmr1.vision.videos import patch_times

PIXELS: tuple[tuple[Kind, str], ...] = (("image", "pixel_values"), ("video", "pixel_values_videos"))
"""The model's argument for the patches of each kind."""


def processed(processor: Any, media: MediaRef, decoded: Any) -> PreparedMedia:
    """What the processor makes of one medium's pixels, which have the size for the model."""
    if media.kind == "image":
        own = processor.image_processor
        batch = own(images=[decoded], do_resize=False, return_tensors="pt")
        patches, grid = batch["pixel_values"], batch["image_grid_thw"][0]
        seconds, times = None, []
    else:
        own = processor.video_processor
        frames, metadata = decoded
        batch = own(
            videos=[frames],
            video_metadata=[metadata],
            do_resize=False,
            do_sample_frames=False,
            return_tensors="pt",
        )
        patches, grid = batch["pixel_values_videos"], batch["video_grid_thw"][0]
        seconds = own.temporal_patch_size / metadata.sampled_fps
        shown = [index / metadata.fps for index in metadata.frames_indices]
        times = patch_times(shown, own.temporal_patch_size)
    t, h, w = grid.tolist()
    return PreparedMedia(
        kind=media.kind,
        patches=patches.float(),
        grid=(t, h, w),
        merge=own.merge_size,
        seconds_per_grid=seconds,
        digest=media.digest(),
        patch_size=own.patch_size,
        times=tuple(times),
    )


def media_inputs(media: Sequence[PreparedMedia]) -> dict[str, torch.Tensor]:
    """``[sum N, D]`` patches and ``[M, 3]`` grids, per kind."""
    inputs: dict[str, torch.Tensor] = {}
    for kind, pixels in PIXELS:
        chosen = [m for m in media if m.kind == kind]
        if chosen:
            inputs[pixels] = torch.cat([m.patches for m in chosen])
            inputs[f"{kind}_grid_thw"] = torch.tensor([m.grid for m in chosen])
    return inputs


def engine_inputs(media: Sequence[PreparedMedia], timed: bool) -> dict[str, EngineInput]:
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
