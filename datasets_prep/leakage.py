"""Does a test set stand in the training data? By picture and by question, approximately."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy.fft import dctn

from mmr1.data.placeholders import TAG
from mmr1.types import Sample
from mmr1.vision.images import load_image

MAX_DISTANCE = 4
"""Of 64 bits; the same picture re-encoded or scaled differs in fewer."""
MIN_WORDS = 5
"""Shorter questions (``How many?``) are common property."""


@dataclass(frozen=True, slots=True)
class Match:
    """Two samples that show the same picture or ask the same question."""

    first: str
    second: str
    by: str


def find_leaks(first: Sequence[Sample], second: Sequence[Sample]) -> list[Match]:
    """Every sample of ``second`` that has a match in ``first``, with the first such match."""
    pictures, questions = _by_hash(first), _by_question(first)
    matches = []
    for sample in second:
        found = _same_picture(sample, pictures)
        asked = normalised(sample.question)
        same = questions.get(asked) if len(asked.split()) >= MIN_WORDS else None
        if found is not None or same is not None:
            by = " and ".join(
                n for n, hit in (("picture", found), ("question", same)) if hit is not None
            )
            matches.append(Match(found or same or "", sample.id, by))
    return matches


def picture_hash(image: Image.Image) -> int | None:
    """Perceptual hash of 64 bits: signs of the low frequencies against their median.

    None for a picture without structure (all of one colour), which resembles all others of its
    kind.
    """
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), float)
    if grey.std() < 2:
        return None
    low = dctn(grey, norm="ortho")[:8, :8].ravel()[1:]
    bits = np.concatenate([low > np.median(low), [False]])
    return int.from_bytes(np.packbits(bits).tobytes())


def normalised(question: str) -> str:
    """The words of a question: case, punctuation, spacing, accents and tags aside."""
    text = unicodedata.normalize("NFKD", TAG.sub(" ", question)).casefold()
    return " ".join(re.findall(r"[^\W_]+", text))


def _hashes(sample: Sample) -> list[int]:
    hashes = [picture_hash(load_image(m)) for m in sample.media if m.kind == "image"]
    return [h for h in hashes if h is not None]


def _bands(value: int) -> list[tuple[int, int]]:
    """Five pieces of the hash: two that differ in at most four bits share a whole piece."""
    return [(i, (value >> (13 * i)) & 0x1FFF) for i in range(5)]


def _by_hash(samples: Sequence[Sample]) -> dict[tuple[int, int], list[tuple[int, str]]]:
    index: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    for sample in samples:
        for value in _hashes(sample):
            for band in _bands(value):
                index[band].append((value, sample.id))
    return index


def _same_picture(
    sample: Sample, index: dict[tuple[int, int], list[tuple[int, str]]]
) -> str | None:
    for value in _hashes(sample):
        for band in _bands(value):
            for other, name in index.get(band, []):
                if (value ^ other).bit_count() <= MAX_DISTANCE:
                    return name
    return None


def _by_question(samples: Sequence[Sample]) -> dict[str, str]:
    return {normalised(sample.question): sample.id for sample in reversed(samples)}
