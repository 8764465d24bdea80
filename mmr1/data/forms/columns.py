"""Columns that other projects give many names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
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
    numbered = {n: row[name] for name in row if (n := _number(name)) is not None}
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
        if value is None or value == "" or value == []:
            continue
        if isinstance(value, Mapping) and not any(v is not None for v in value.values()):
            continue  # an empty struct of a parquet file
        return value
    return None


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """A row whose ``columns`` have the names of EasyR1's rows, which they are mapped from.

    A row needs not have both images and videos. Its other columns of a kind that is named are
    left out.

    Raises:
        ValueError: A column is missing.
    """
    media = [theirs for ours, theirs in columns.items() if ours in ("images", "videos")]
    has_media = any(name in row for name in media)
    for theirs in columns.values():
        if theirs not in row and not (theirs in media and has_media):
            shown = ", ".join(sorted(map(str, row)))
            raise ValueError(f"there is no column '{theirs}'; the row has {shown}")
    others = {
        n: v
        for n, v in row.items()
        if n not in columns.values()
        and n not in columns
        and not ("images" in columns and _is_image_column(n))
        and not ("videos" in columns and n in VIDEOS)
    }
    return {**others, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}


def is_media_column(name: str) -> bool:
    """Whether a column holds media, and so stays out of ``meta``."""
    return _is_image_column(name) or name in VIDEOS


def _is_image_column(name: str) -> bool:
    return name in IMAGES or _number(name) is not None


@lru_cache(maxsize=1 << 12)
def _number(name: str) -> int | None:
    """The number in ``image_2``, or None."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None
