"""The checks of one record: what a training run and its reward functions need of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from datasets_prep.finish import check_gold, check_media
from datasets_prep.task_checks import check_needs
from mmr1.files import stamp
from mmr1.types import MediaRef, Sample


def check_sample(sample: Sample, deep: bool = False) -> None:
    """Raises ValueError for what the task lacks, media that do not decode and unreadable golds.

    With ``deep`` every frame of a video is decoded.
    """
    check_needs(sample)
    for ref in sample.media:
        size = _size(ref, deep)
        if ref.size is not None and tuple(ref.size) != size:
            raise ValueError(f"{ref}: the record states {ref.size}, it is {size}")
    check_gold(sample)


def _size(ref: MediaRef, deep: bool) -> tuple[int, int]:
    """The size of a medium that decodes; a picture of many records is decoded once per process."""
    if ref.kind == "image" and ref.path is not None:
        return _size_of_image(str(ref.path), ref.size, stamp(ref.path))
    return check_media(ref, deep)


@lru_cache(maxsize=1 << 16)
def _size_of_image(
    path: str, size: tuple[int, int] | None, _stamp: tuple[int, ...]
) -> tuple[int, int]:
    return check_media(MediaRef("image", Path(path), None, size))
