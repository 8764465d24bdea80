"""Frame lists: make a folder of frames usable as a video."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mmr1.files import atomic

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


def list_frames(folder: Path, fps: float, every: int = 1) -> Path:
    """Write ``folder.frames.json`` beside the folder, with every ``every``-th frame; returns it.

    Raises:
        ValueError: The folder holds no images, or ``fps`` or ``every`` is not above 0.
    """
    files = sorted(p for p in folder.glob("*") if p.suffix.lower() in _SUFFIXES)[::every]
    if not files or fps <= 0 or every <= 0:
        raise ValueError(f"{folder}: no images" if not files else "the frame rate is not above 0")
    frames = [
        {"path": f"{folder.name}/{p.name}", "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in files
    ]
    path = folder.with_name(f"{folder.name}.frames.json")
    with atomic(path) as file:
        json.dump({"fps": fps / every, "frames": frames}, file, indent=1)
    return path
