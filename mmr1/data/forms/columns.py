"""Columns that other projects give many names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmr1.data.forms.form import Row

IMAGES = ("decoded_image", "images", "image", "image_path", "image_urls", "image_url")
VIDEOS = ("videos", "video", "video_path")
OPTIONS = ("options", "choices")

_NUMBERED = re.compile(r"image_?(\d+)")


def images_of(row: Row) -> Any:
    """The image column of a row. Encoded bytes go before a path, which may be of another machine.

    ``image_1``, ``image_2``, … are its images in this order.
    """
    numbered = {int(m[1]): row[name] for name in row if (m := _NUMBERED.fullmatch(name))}
    if any(value is not None for value in numbered.values()):
        return [numbered[number] for number in sorted(numbered) if numbered[number] is not None]
    return first_of(row, IMAGES)


def videos_of(row: Row) -> Any:
    """The video column of a row."""
    return first_of(row, VIDEOS)


def first_of(row: Row, names: tuple[str, ...]) -> Any:
    """The first of these columns that holds something, or None."""
    for name in names:
        value = row.get(name)
        if isinstance(value, Mapping) and not any(v is not None for v in value.values()):
            continue  # an empty struct of a parquet file
        if value is not None and value != "" and value != []:
            return value
    return None


def is_media_column(name: str) -> bool:
    """Whether a column holds media, and so stays out of ``meta``."""
    return name in IMAGES or name in VIDEOS or _NUMBERED.fullmatch(name) is not None
