"""Converted moments: those whose ends were clipped are counted; and where their videos lie."""

from __future__ import annotations

from pathlib import Path

from datasets_prep.converters.base import Changed
from mmr1.types import Sample

_SUFFIXES = (".mp4", ".avi", ".mkv", ".webm")


def counted(sample: Sample, clipped: bool) -> Sample | Changed:
    """The sample of a moment, as changed if its end was clipped."""
    return Changed(sample, "end clipped to the video's duration") if clipped else sample


def video_file(root: Path, name: str) -> str:
    """The path, relative to the root, of the video with this name in any of the usual places.

    Raises:
        ValueError: There is none.
    """
    for folder in ("", "videos/", "Charades_v1/", "Charades_v1_480/"):
        for suffix in _SUFFIXES:
            if (root / f"{folder}{name}{suffix}").is_file():
                return f"{folder}{name}{suffix}"
    raise ValueError(f"the video '{name}' ({', '.join(_SUFFIXES)}) is not under {root}")
