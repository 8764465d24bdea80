"""Thumbnails of images and videos, scaled so that all of them fit into the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, VideoBudget
from mmr1.vision.images import load_image
from mmr1.vision.videos import load_video

SIDES = (320, 224, 160, 112, 80)
"""Longest side of a thumbnail in pixels; the largest that fits the budget is used."""
FRAMES = 8
"""Frames shown of a video."""
SAMPLES = 24
"""Number of media from whose thumbnails the size of all of them is estimated."""
QUALITY = 60

Picture = dict[str, Any]
"""``kind``, original ``width`` and ``height``, ``frames`` as data URLs, ``times`` in seconds; or
``kind`` and ``missing``, the reason."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image or video of a rollout, and its file."""

    digest: str
    kind: str
    file: Path
    options: Mapping[str, Any]


def thumbnail(medium: Medium, side: int) -> Picture:
    """The thumbnail of a medium, ``side`` pixels long; or the reason why there is none."""
    try:
        return _video(medium, side) if medium.kind == "video" else _image(medium, side)
    except (OSError, ValueError) as error:
        return {"kind": medium.kind, "missing": str(error)}


def fitting_side(media: Sequence[Medium], budget: int) -> int:
    """The largest of :data:`SIDES` at which all thumbnails together stay within ``budget`` bytes.

    Estimated from evenly spaced samples. The smallest side if none fits.
    """
    if not media:
        return SIDES[0]
    samples = media[:: max(1, len(media) // SAMPLES)]
    for side in SIDES:
        size = sum(_bytes(thumbnail(medium, side)) for medium in samples)
        if size * len(media) / len(samples) <= budget:
            return side
    return SIDES[-1]


def thumbnails(
    media: Iterable[Medium], side: int, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Picture]:
    """All thumbnails by digest; ``progress`` is called with the number finished."""
    pictures: dict[str, Picture] = {}
    for medium in media:
        pictures[medium.digest] = thumbnail(medium, side)
        progress(len(pictures))
    return pictures


def _image(medium: Medium, side: int) -> Picture:
    image = load_image(MediaRef("image", medium.file))
    width, height = image.size
    return {"kind": "image", "width": width, "height": height, "frames": [_encode(image, side)]}


def _video(medium: Medium, side: int) -> Picture:
    """Up to :data:`FRAMES` of the frames that the model saw, at half the side."""
    sampling = {k: v for k, v in medium.options.items() if not k.endswith("_pixels")}
    budget = VideoBudget(frame=PixelBudget(4 * 28 * 28, (side // 2) ** 2))
    frames, metadata = load_video(MediaRef("video", medium.file, options=sampling), budget)
    every = -(-len(frames) // FRAMES)
    shown_frames, indices = frames[::every], metadata.frames_indices[::every]
    pictures = [Image.fromarray(f.permute(1, 2, 0).numpy()) for f in shown_frames]
    return {
        "kind": "video",
        "width": metadata.width,
        "height": metadata.height,
        "frames": [_encode(p, side // 2) for p in pictures],
        "times": [round(float(i) / metadata.fps, 2) for i in indices],
    }


def _encode(image: Image.Image, side: int) -> str:
    """A data URL in WebP; small images are lossless."""
    lossless = max(image.size) <= min(side, 96)
    scaled = image.copy()
    scaled.thumbnail((side, side))
    target = io.BytesIO()
    scaled.save(target, "WEBP", lossless=lossless, quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode()


def _bytes(picture: Picture) -> int:
    return sum(map(len, picture.get("frames", [])))
