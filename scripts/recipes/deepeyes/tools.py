"""The tools that the system prompts of DeepEyes' data describe, under their names."""

from __future__ import annotations

from PIL import Image

from mmr1.environments.pictures import Picture
from mmr1.environments.toolbox import zoom


def image_zoom_in_tool(image: Picture, bbox_2d: list[float], label: str = "") -> Image.Image:
    """Zoom in on a part of a picture.

    Args:
        image: The picture.
        bbox_2d: Left, top, right and bottom of the part.
        label: What is there.
    """
    return zoom(image, bbox_2d)


def image_rotate_tool(image: Picture, angle: float) -> Image.Image:
    """Turn a picture counterclockwise; its size stays.

    Args:
        image: The picture.
        angle: How far, in degrees.
    """
    return image.image.rotate(angle)
