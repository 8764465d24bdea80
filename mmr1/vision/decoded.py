"""Pixels that a processor has not seen yet, kept as prepared media."""

from __future__ import annotations

from typing import Any

from PIL import Image
from transformers.video_utils import VideoMetadata

from mmr1.vision.prepare import Medium, PreparedMedia


def as_decoded(medium: Medium) -> Any:
    """A PIL image, or ``(frames [T, 3, H, W], VideoMetadata)``, of what holds pixels."""
    if medium.kind == "image":
        return Image.fromarray(medium.patches[0].numpy())
    assert isinstance(medium, PreparedMedia)
    assert medium.metadata is not None
    return medium.patches.permute(0, 3, 1, 2), VideoMetadata(**medium.metadata)
