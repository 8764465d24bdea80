"""A tiny Qwen2.5-VL and ragged groups for it: text, images, videos, shared and unshared."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from mmr1.rollout.distribution import support_of
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.types import Support
from mmr1.vision.families import tiny
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import Medium


@functools.cache
def model_dir(preset: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="mmr1-packed-")) / preset
    tiny.new_model(path, preset)
    return path


@functools.cache
def family() -> ModelFamily:
    return load_family(str(model_dir("tiny")))


def new_model(preset: str = "tiny") -> Any:
    return copy.deepcopy(_weights(preset)).eval()


@functools.cache
def _weights(preset: str) -> Any:
    """At initialisation attention hardly matters; larger weights make its errors show."""
    model = AutoModelForImageTextToText.from_pretrained(model_dir(preset), dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "qkv.weight")):
                parameter.mul_(6)
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def with_support(groups: Sequence[GroupInput], seed: int) -> list[GroupInput]:
    """The groups as if an engine had kept a few random ids for most tokens, their own included."""
    rng = np.random.default_rng(seed)

    def support(tokens: torch.Tensor) -> Support:
        rows = []
        for token in tokens.tolist():
            ids = rng.permutation(np.unique([token, *rng.integers(0, 400, rng.integers(0, 9))]))
            rows.append(ids[:0] if rng.random() < 0.1 else ids.astype(np.int32))
        return support_of(rows)

    return [replace(g, support=tuple(support(row) for row in g.completions)) for g in groups]


def image(height: int, width: int, seed: int) -> Medium:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    processor = family().processor.image_processor
    batch = processor(images=[torch.tensor(pixels).permute(2, 0, 1)], return_tensors="pt")
    t, h, w = batch["image_grid_thw"][0].tolist()
    patches = batch["pixel_values"].float()
    return Medium("image", patches, (t, h, w), 2, None, f"image {height} {width} {seed}")


def video(frames: int, height: int, width: int, seed: int) -> Medium:
    pixels = np.random.default_rng(seed).integers(0, 255, (frames, 3, height, width), np.uint8)
    processor = family().processor.video_processor
    batch = processor(
        videos=[torch.tensor(pixels)],
        do_resize=False,
        do_sample_frames=False,
        return_tensors="pt",
    )
    t, h, w = batch["video_grid_thw"][0].tolist()
    patches = batch["pixel_values_videos"].float()
    digest = f"video {frames} {height} {width} {seed}"
    return Medium("video", patches, (t, h, w), 2, 1.0, digest)


def group(media: Sequence[Medium], text: int, completions: Sequence[int], seed: int) -> GroupInput:
    """Random ids: ``text`` prompt tokens around the media, completions of the given lengths."""
    rng = np.random.default_rng(seed)
    names = {"image": family().image_id, "video": family().video_id}
    ids = rng.integers(20, 600, text).tolist()
    places = sorted(rng.integers(0, text, len(media)).tolist())
    for place, medium in reversed(list(zip(places, media, strict=True))):
        ids.insert(place, names[medium.kind])
    ids = family().expand_placeholders(ids, media)
    positions = family().prompt_positions(ids, media)
    return GroupInput(
        prompt_ids=torch.tensor(ids),
        prompt_positions=positions,
        completion_start=family().completion_start(positions),
        media=tuple(media),
        completions=tuple(torch.tensor(rng.integers(20, 600, n)) for n in completions),
    )
