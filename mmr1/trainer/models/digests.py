"""Digests of a checkpoint's files, taken where the files are written.

Of ranks each reads what it has just written, which is still in its machine's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mmr1.files import sha256_of

Digests = dict[str, str]
"""SHA-256 in hexadecimal of files of a checkpoint, by their paths in its folder."""


def sync_and_digest(folder: Path, paths: Iterable[Path]) -> Digests:
    """Bring files below ``folder`` to the disk; their digests."""
    digests = {}
    for path in paths:
        sync(path)
        digests[str(path.relative_to(folder))] = sha256_of(path).hex()
    return digests


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
