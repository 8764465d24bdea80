"""Frame lists: make a folder of frames usable as a video."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from mmr1.files import atomic
from mmr1.vision.images import size_of_all

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


def list_frames(folder: Path, fps: float, every: int = 1) -> Path:
    """Write ``folder.frames.json`` beside the folder, with every ``every``-th frame; returns it.

    The frames are in natural order: 2.jpg before 10.jpg.

    Raises:
        ValueError: The folder holds no images, or images of several sizes, or ``fps`` or ``every``
            is not above 0.
    """
    if fps <= 0 or every <= 0:
        raise ValueError(f"--fps {fps:g} --every {every}: both must be above 0")
    images = (p for p in folder.glob("*") if p.suffix.lower() in _SUFFIXES)
    files = sorted(images, key=_natural)[::every]
    if not files:
        raise ValueError(f"{folder} holds no images")
    size_of_all(files)
    frames = [
        {"path": f"{folder.name}/{p.name}", "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in files
    ]
    path = folder.with_name(f"{folder.name}.frames.json")
    with atomic(path) as file:
        json.dump({"fps": fps / every, "frames": frames}, file, indent=1)
    return path


def _natural(path: Path) -> tuple[list[tuple[bool, int, str]], str]:
    """A sorting key by which numbers in names count as numbers, and case does not matter."""
    pieces = re.findall(r"\d+|\D+", path.stem)
    numbers = [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p.lower()) for p in pieces]
    return numbers, path.name
