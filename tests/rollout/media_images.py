"""Images that pass through the pipe of an engine process."""

from __future__ import annotations

import torch

from mmr1.vision.prepare import Medium


def image(side: int, name: str = "") -> Medium:
    patches = torch.randn(side * side, 12, generator=torch.Generator().manual_seed(side))
    return Medium("image", patches, (1, side, side), 2, None, name or f"{side}")
