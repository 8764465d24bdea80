"""Sound: decoded as FFmpeg reads it, in the process of the videos, to one channel."""

from __future__ import annotations

import struct

import numpy as np

from mmr1.types import MediaRef
from mmr1.vision.videos import DEADLINE, ask, on_disk

MIN_SECONDS = 0.1
"""Shorter sound is refused: towers of audio make no token of it."""

RATE, MAX_SECONDS = 16_000, 3600.0
"""For checks of sound without a model; its processor knows the rate and the longest sound."""

_FLOAT = 3
"""The format tag of 32-bit floating point in a WAV file."""


def load_audio(ref: MediaRef, rate: int, max_seconds: float) -> np.ndarray:
    """Decode all of a sound: ``[samples]`` float32 of -1 to 1, channels averaged, resampled.

    With the option ``blank`` all samples are 0.

    Args:
        ref: WAV, FLAC, MP3, Ogg, M4A, or the sound of a video file.
        rate: Samples per second of what is returned.
        max_seconds: Longer sound is refused.

    Raises:
        ValueError: Names the file: it cannot be decoded, is silent by nature (no stream of sound),
            is damaged, too short or too long, or has options of other media. Nothing is ever put in
            its place, and nothing is cut off.
    """
    if other := sorted(ref.options.keys() - {"blank"}):
        raise ValueError(f"{ref}: the media option '{other[0]}' is not one of audio")
    with on_disk(ref) as path:
        request = {"task": "audio", "rate": rate, "max_seconds": max_seconds}
        facts, data = ask(ref, path, request, DEADLINE)
    samples = np.frombuffer(data, np.float32).reshape(facts["shape"])
    if len(samples) < MIN_SECONDS * rate:
        raise ValueError(
            f"{ref}: lasts {len(samples) / rate:.3f} s, less than {MIN_SECONDS} s; drop the row"
        )
    return np.zeros_like(samples) if "blank" in ref.options else samples


def wav(samples: np.ndarray, rate: int) -> bytes:
    """The WAV file of ``[samples]`` or ``[channels, samples]``, in 32-bit floating point.

    Raises:
        ValueError: They are not such numbers.
    """
    values = np.atleast_2d(np.asarray(samples))
    if values.ndim != 2 or not values.size or values.dtype.kind not in "fiu":
        raise ValueError(
            f"an array of sound has the shape {np.shape(samples)} and the type {values.dtype}; it "
            "must be of numbers, [samples] or [channels, samples]"
        )
    if values.dtype.kind != "f":
        raise ValueError("an array of sound holds whole numbers; scale it to -1 to 1 in float32")
    if not np.isfinite(values).all():
        raise ValueError("an array of sound holds NaN or infinity; make it anew")
    data = values.astype("<f4").T.tobytes()
    channels = len(values)
    form = struct.pack("<HHIIHH", _FLOAT, channels, rate, 4 * rate * channels, 4 * channels, 32)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
