"""How a picture looks: what re-encoding, scaling and cutting its margin leave nearly as it was.

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
from scipy.fft import dct

LIMITS = (0.95, 0.97)
"""Least correlation of equal pictures: as they are, and without their margins."""
ENOUGH = 128
"""Pixels of the shorter side that a look is taken from."""
SIDE = 16
BITS = 8  # bytes of the 64 bits; candidates have one of them in common
COSINES = dct(np.eye(2 * SIDE), axis=0, norm="ortho")[:8]
"""``[8, 32]``, the lowest frequencies of the discrete cosine transform."""
HALVES = np.repeat(np.eye(SIDE), 2, axis=1) / 2
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
        """Those of decoded images."""
        looks = [_look(image) for image in images]
        return Looks(
            np.array([bits for bits, _ in looks], np.uint8).reshape(-1, 2, BITS),
            np.array([tones for _, tones in looks], np.int8).reshape(-1, 2, SIDE * SIDE),
        )


def _look(image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    grey = image.convert("L")
    if (factor := min(grey.size) // ENOUGH) > 1:
        grey = grey.reduce(factor)
    whole, content = (_part(part) for part in (grey, _without_margin(grey)))
    return np.stack([whole[0], content[0]]), np.stack([whole[1], content[1]])


def _without_margin(grey: Image.Image) -> Image.Image:
    values = np.asarray(grey)
    edge = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    margin = int(np.sort(edge)[len(edge) // 2])  # the median; numpy's own is slow
    content = np.abs(values.astype(np.int16) - margin) > CONTENT
    rows, columns = (np.flatnonzero(content.any(axis)) for axis in (1, 0))
    if min(len(rows), len(columns)) < BITS:
        return grey
    return grey.crop((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))


def _part(grey: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(grey.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX), float)
    low = (COSINES @ values @ COSINES.T).ravel()[1:]
    bits = np.packbits(np.append(low > np.sort(low)[len(low) // 2], False))
    tones = (HALVES @ values @ HALVES.T).ravel()
    tones -= tones.mean()
    if tones @ tones < FLAT**2 * len(tones):
        return bits, np.zeros(SIDE * SIDE, np.int8)
    return bits, np.rint(127 * tones / np.abs(tones).max()).astype(np.int8)


class Index:
    """Finds the known pictures that look like others.

    Args:
        known: Their looks.
    """

    def __init__(self, known: Looks) -> None:
        self._known = known
        columns = known.bits.reshape(len(known.bits), 2 * BITS).T
        self._order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        # Where the pictures with each value of each byte begin: [16, 257].
        self._starts = np.stack(
            [np.searchsorted(np.sort(column), np.arange(257)) for column in columns]
        )

    def find(self, looks: Looks) -> list[np.ndarray]:
        """For each picture the indices of the known ones that look like it, sorted."""
        return [
            self._alike(bits, tones) for bits, tones in zip(looks.bits, looks.tones, strict=True)
        ]

    def _alike(self, bits: np.ndarray, tones: np.ndarray) -> np.ndarray:
        found = []
        for part, limit in enumerate(LIMITS):
            near = np.unique(
                np.concatenate(
                    [
                        self._order[row, self._starts[row, value] : self._starts[row, value + 1]]
                        for row, value in enumerate(bits[part].tolist(), part * BITS)
                    ]
                )
            )
            own = tones[part].astype(np.float32)
            theirs = self._known.tones[near, part].astype(np.float32)
            scale = np.linalg.norm(theirs, axis=1) * np.linalg.norm(own)
            found.append(near[theirs @ own > limit * np.maximum(scale, 1e-9)])
        return np.unique(np.concatenate(found))
