"""The look of a picture: nearly unchanged by re-encoding, scaling and cutting its margin.

A look is made of a picture as it is, and again of its content without a margin of one colour. Each
is 64 bits that find candidates (the signs of the low frequencies against their median, as in pHash)
and 16 x 16 brightnesses that decide: the correlation of two pictures' brightnesses.
``scripts/bench/leakage.py`` measures precision and recall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmr1.extras import needs_extra

with needs_extra("data", "mmr1-data split and leakage"):
    from scipy.fft import dct

LIMITS = (0.95, 0.97)
"""Least correlation of equal pictures: as they are, and without their margins."""
ENOUGH = 128
"""Pixels of the shorter side that a look is taken from."""
SIDE = 16
BITS = 8  # bytes of the 64 bits; candidates have one of them in common
COSINES = dct(np.eye(2 * SIDE), axis=0, norm="ortho")[:8].astype(np.float32)
"""``[8, 32]``, the lowest frequencies of the discrete cosine transform."""
HALVES = np.repeat(np.eye(SIDE, dtype=np.float32), 2, axis=1) / 2
"""``[16, 32]``, the means of two neighbours."""
CONTENT = 32
"""Difference from the margin's brightness, of 255, from which a pixel is content."""
FLAT = 2.0
"""Standard deviation of the brightness below which a picture has one colour and no look."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks of n pictures.

    Attributes:
        bits: ``[n, 2, 8]`` uint8.
        tones: ``[n, 2, 256]`` int8, brightness less its mean, the largest at 127; 0 without a look.
    """

    bits: np.ndarray
    tones: np.ndarray

    @staticmethod
    def of(images: Sequence[Image.Image]) -> Looks:
        """The looks of decoded images."""
        return Looks.of_reduced([reduced(image) for image in images])

    @staticmethod
    def of_reduced(images: Sequence[np.ndarray]) -> Looks:
        """The looks of images that :func:`reduced` reduced; many together take less time."""
        values = np.array(images, np.float32).reshape(-1, 2 * SIDE, 2 * SIDE)
        bits, tones = _bits(values), _tones(values)
        return Looks(bits.reshape(-1, 2, BITS), tones.reshape(-1, 2, SIDE * SIDE))


def reduced(image: Image.Image) -> np.ndarray:
    """``[2, 32, 32]`` uint8, the brightness of an image and of its content without a margin."""
    grey = image if image.mode == "L" else image.convert("L")
    if (factor := min(grey.size) // ENOUGH) > 1:
        grey = grey.reduce(factor)
    content = _without_margin(grey)
    whole = _to_side(grey)
    return np.stack([whole, whole if content is grey else _to_side(content)])


def _to_side(grey: Image.Image) -> np.ndarray:
    return np.asarray(grey.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX))


def _without_margin(grey: Image.Image) -> Image.Image:
    """The content of a picture, or the same picture where it reaches every edge."""
    values = np.asarray(grey)
    edge = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    margin = int(np.sort(edge)[len(edge) // 2])  # the median; numpy's own is slow
    low, high = max(margin - CONTENT, 0), min(margin + CONTENT, 255)
    # Bytes wrap around: what is darker than ``low`` becomes bright.
    content = values - np.uint8(low) > np.uint8(high - low)
    rows, columns = (np.flatnonzero(content.any(axis)) for axis in (1, 0))
    if min(len(rows), len(columns)) < BITS:
        return grey
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return grey if box == (0, 0, *grey.size) else grey.crop(box)


def _bits(values: np.ndarray) -> np.ndarray:
    """The bits ``[n, 8]`` of ``[n, 32, 32]`` brightnesses."""
    low = (COSINES @ values @ COSINES.T).reshape(len(values), BITS * BITS)[:, 1:]
    median = np.sort(low, axis=1)[:, low.shape[1] // 2, None]
    return np.packbits(np.pad(low > median, ((0, 0), (0, 1))), axis=1)


def _tones(values: np.ndarray) -> np.ndarray:
    """The tones ``[n, 256]`` of ``[n, 32, 32]`` brightnesses."""
    tones = (HALVES @ values @ HALVES.T).reshape(len(values), SIDE * SIDE)
    tones -= tones.mean(axis=1, keepdims=True)
    tones[(tones**2).mean(axis=1) < FLAT**2] = 0
    largest = np.abs(tones).max(axis=1, initial=1e-9, keepdims=True)
    return np.rint(127 * tones / largest).astype(np.int8)


class Index:
    """Finds the known pictures that look like others.

    Args:
        known: Their looks.
    """

    def __init__(self, known: Looks) -> None:
        self._known = known
        columns = known.bits.reshape(len(known.bits), 2 * BITS).T
        self._order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        # Where the pictures with each value of each byte begin: [16][257].
        self._starts = [
            np.searchsorted(np.sort(column), np.arange(257)).tolist() for column in columns
        ]
        self._lengths = np.concatenate(
            [np.empty((0, 2)), *(_lengths(part) for part in _blocks(known.tones))]
        )

    def find(self, looks: Looks) -> list[np.ndarray]:
        """The indices of the known pictures that look like each picture, sorted."""
        lengths = _lengths(looks.tones)
        return [
            self._alike(bits, tones, length)
            for bits, tones, length in zip(looks.bits.tolist(), looks.tones, lengths, strict=True)
        ]

    def _alike(self, bits: list[list[int]], tones: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        found = []
        for part, limit in enumerate(LIMITS):
            near = self._near(part, bits[part])
            own = tones[part].astype(np.float32)
            theirs = self._known.tones[near, part].astype(np.float32)
            scale = self._lengths[near, part] * lengths[part]
            found.append(near[theirs @ own > limit * np.maximum(scale, 1e-9)])
        return np.unique(np.concatenate(found))

    def _near(self, part: int, bits: list[int]) -> np.ndarray:
        """The known pictures that have one byte in common with these, some of them twice."""
        rows = range(part * BITS, (part + 1) * BITS)
        starts = [self._starts[row] for row in rows]
        return np.concatenate(
            [
                self._order[row, start[value] : start[value + 1]]
                for row, start, value in zip(rows, starts, bits, strict=True)
            ]
        )


def _lengths(tones: np.ndarray) -> np.ndarray:
    """``[n, 2]``, the lengths of the tones as vectors."""
    return np.linalg.norm(tones.astype(np.float32), axis=2)


def _blocks(tones: np.ndarray, size: int = 1 << 12) -> list[np.ndarray]:
    return [tones[at : at + size] for at in range(0, len(tones), size)]
