"""Pictures shown in another way: with noise, cropped, masked, coarse or grey, in their size.

An option of a medium names the view and says how much of it, ``noise_seed`` and the like what is
drawn. A size that stays keeps the tokens of the prompt and the coordinates of boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

GREY = 127
"""What a blank picture shows."""
MASKED_PATCH = 14
"""Pixels of the side of a patch that is masked: Qwen-VL's, and PAPO's."""
NOISE_STEPS = 1000
"""Steps of the diffusion process that noise is taken from."""

_SEEDED = ("noise", "crop", "mask")
"""The views that are drawn by a seed, beside ``shuffle``, whose value is the seed itself."""


def view_options(view: str, strength: float, seed: int) -> dict[str, float]:
    """The options of a medium for a view of it."""
    if view == "shuffle":
        return {"shuffle": seed}
    drawn = {f"{view}_seed": seed} if view in _SEEDED else {}
    return {view: strength, **drawn}


def altered(pixels: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Pixels ``[..., H, W, 3]`` uint8 as the options show them; those without a view as they are.

    - ``noise``: step ``1000 * strength`` of a diffusion process, drawn for each pixel and frame.
    - ``crop``: grey around a window, the same in all frames, from whose place ``strength`` of the
      width and of the height is cut off.
    - ``mask``: each patch of 14 x 14 pixels is black with that probability, in all frames.
    - ``resolution``: ``strength`` of the rows and of the columns is lost.
    - ``blank``: grey.
    """
    for view, alter in _VIEWS.items():
        if view in options:
            draw = np.random.default_rng(options.get(f"{view}_seed", 0))
            pixels = alter(pixels, float(options[view]), draw)
    return pixels


def _blank(pixels: np.ndarray, strength: float, draw: np.random.Generator) -> np.ndarray:
    return np.full_like(pixels, GREY)


def _crop(pixels: np.ndarray, strength: float, draw: np.random.Generator) -> np.ndarray:
    shown = np.full_like(pixels, GREY)
    window: list[slice] = []
    for side in pixels.shape[-3:-1]:
        kept = max(1, round(side * (1 - strength)))
        start = int(draw.integers(side - kept + 1))
        window.append(slice(start, start + kept))
    rows, columns = window
    shown[..., rows, columns, :] = pixels[..., rows, columns, :]
    return shown


def _mask(pixels: np.ndarray, strength: float, draw: np.random.Generator) -> np.ndarray:
    height, width = pixels.shape[-3:-1]
    rows, columns = -(-height // MASKED_PATCH), -(-width // MASKED_PATCH)
    patch = np.ones((MASKED_PATCH, MASKED_PATCH), dtype=bool)
    black = np.kron(draw.random((rows, columns)) < strength, patch)[:height, :width]
    return np.where(black[..., None], 0, pixels).astype(pixels.dtype)


def _noise(pixels: np.ndarray, strength: float, draw: np.random.Generator) -> np.ndarray:
    kept = float(kept_of_picture()[min(int(NOISE_STEPS * strength), NOISE_STEPS - 1)])
    noise = draw.standard_normal(pixels.shape, dtype=np.float32)
    noisy = kept * (pixels / np.float32(255)) + (1 - kept**2) ** 0.5 * noise
    return (noisy.clip(0, 1) * 255).round().astype(np.uint8)


@cache
def kept_of_picture() -> np.ndarray:
    """``[1000]``: by what pixels in [0, 1] are multiplied at each step, ``sqrt(prod(1 - beta))``.

    ``beta`` goes from 1e-5 to 0.005 along a sigmoid from -6 to 6, as in VCD (arXiv 2311.16922) and
    NoisyRollout (arXiv 2504.13055). What is added is normal, of variance 1 minus the square.
    """
    beta = 1 / (1 + np.exp(-np.linspace(-6, 6, NOISE_STEPS))) * (0.5e-2 - 1e-5) + 1e-5
    return np.sqrt(np.cumprod(1 - beta))


def _resolution(pixels: np.ndarray, strength: float, draw: np.random.Generator) -> np.ndarray:
    height, width = pixels.shape[-3:-1]
    small = [max(1, round(side * (1 - strength))) for side in (width, height)]
    shown = np.empty_like(pixels)
    for index in np.ndindex(pixels.shape[:-3]):
        frame = Image.fromarray(pixels[index]).resize((small[0], small[1]), Image.Resampling.BOX)
        shown[index] = np.asarray(frame.resize((width, height), Image.Resampling.BICUBIC))
    return shown


_VIEWS: Mapping[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
    "blank": _blank,
    "resolution": _resolution,
    "noise": _noise,
    "crop": _crop,
    "mask": _mask,
}
