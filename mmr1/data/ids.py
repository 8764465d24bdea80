"""Find repeated ids among many: eight bytes for each instead of the ids themselves."""

from __future__ import annotations

import hashlib

import numpy as np


def hash64(text: str | bytes) -> int:
    """64 bits of a hash, the same in every process."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def repeated(hashes: np.ndarray) -> np.ndarray:
    """The values that appear more than once, sorted.

    Equal ids have equal hashes. Of ten million different ids, two have the same hash once in
    400,000 times; so the caller compares the ids behind a repeated hash.
    """
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
