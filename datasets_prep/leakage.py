"""Find test samples in the training data, by perceptual image hash and by question."""

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
"""Bits of 64; a re-encoded or scaled copy of an image differs in fewer."""
MIN_WORDS = 5
"""Shorter questions (``How many?``) occur in many datasets and are no evidence."""


@dataclass(frozen=True, slots=True)
class Match:
    """Two samples that show the same picture or ask the same question."""

    first: str
    second: str
    by: str


def find_leaks(first: Sequence[Sample], second: Sequence[Sample]) -> list[Match]:
    """Each sample of ``second`` that matches one of ``first``, with the first match."""
    pictures, questions = _by_hash(first), _by_question(first)
    matches = []
    for sample in second:
        same_picture = _same_picture(sample, pictures)
        question = normalised(sample.question)
        same_question = questions.get(question) if len(question.split()) >= MIN_WORDS else None
        if same_picture is not None or same_question is not None:
            by = " and ".join(
                n
                for n, hit in (("picture", same_picture), ("question", same_question))
                if hit is not None
            )
            matches.append(Match(same_picture or same_question or "", sample.id, by))
    return matches


def picture_hash(image: Image.Image) -> int | None:
    """Perceptual hash of 64 bits: signs of the low frequencies against their median.

    None for an image of a single colour, because all of these have the same hash.
    """
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), float)
    if grey.std() < 2:
        return None
    low = dctn(grey, norm="ortho")[:8, :8].ravel()[1:]
    bits = np.concatenate([low > np.median(low), [False]])
    return int.from_bytes(np.packbits(bits).tobytes())


def normalised(question: str) -> str:
    """The words of a question, without case, punctuation, accents and tags."""
    text = unicodedata.normalize("NFKD", TAG.sub(" ", question)).casefold()
    return " ".join(re.findall(r"[^\W_]+", text))


def _hashes(sample: Sample) -> list[int]:
    hashes = [picture_hash(load_image(m)) for m in sample.media if m.kind == "image"]
    return [h for h in hashes if h is not None]


def _bands(value: int) -> list[tuple[int, int]]:
    """Five pieces of the hash. Hashes that differ in at most four bits have a piece in common."""
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
            for indexed, name in index.get(band, []):
                if (value ^ indexed).bit_count() <= MAX_DISTANCE:
                    return name
    return None


def _by_question(samples: Sequence[Sample]) -> dict[str, str]:
    return {normalised(sample.question): sample.id for sample in reversed(samples)}
