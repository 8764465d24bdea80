"""Columns that other projects give many names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args

from mmr1.data.forms.form import Row
from mmr1.data.forms.media_kinds import kind_of_path, may_hold_media, media_in
from mmr1.types import MediaKind

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
        if 0 not in numbered and 1 not in numbered and row.get("image"):
            numbered[0] = row["image"]  # image, image_2, image_3
        return [numbered[number] for number in sorted(numbered) if numbered[number] is not None]
    return first_of(row, IMAGES) or _named_file(row, "image")


def videos_of(row: Row) -> Any:
    """The video column of a row."""
    return first_of(row, VIDEOS) or _named_file(row, "video")


def _named_file(row: Row, kind: str) -> Any:
    """The column of a Hugging Face ImageFolder or VideoFolder, if it names a file of this kind."""
    name = row.get("file_name")
    return name if isinstance(name, str) and kind_of_path(name) == kind else None


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

    A row needs not have media of all kinds. Its other columns with media of a kind that is
    named are left out.

    Raises:
        ValueError: A column is missing.
    """
    media = [columns[f"{kind}s"] for kind in kinds_named(columns)]
    has_media = any(held(row, name) for name in media)
    for theirs in columns.values():
        if not held(row, theirs) and not (theirs in media and has_media):
            shown = ", ".join(sorted(map(str, row)))
            raise ValueError(f"there is no column '{theirs}'; the row has {shown}")
    rest = without_media(row, kinds_named(columns))
    taken = {*columns, *",".join(columns.values()).split(",")}
    others = {n: v for n, v in rest.items() if n not in taken}
    values = {ours: held(row, theirs) for ours, theirs in columns.items()}
    return {**others, **{ours: value[0] for ours, value in values.items() if value}}


def held(row: Row, named: str) -> tuple[Any] | None:
    """The value of a column, or those of several (``left,right``) as a list; None if one lacks.

    It is a tuple of one, as a value may be None itself.
    """
    if named in row:
        return (row[named],)
    names = named.split(",")
    if len(names) > 1 and all(name in row for name in names):
        return ([row[name] for name in names],)
    return None


def kinds_named(columns: Mapping[str, str]) -> list[str]:
    """The kinds of media whose column the user named."""
    return [kind for kind in get_args(MediaKind) if f"{kind}s" in columns]


def without_media(row: Row, kinds: Sequence[str]) -> Row:
    """The row without its columns of media of these kinds, whose column the user names."""
    if not kinds:
        return row
    return {
        name: value
        for name, value in row.items()
        if kind_of_column(name) not in kinds
        and not (may_hold_media(value) and any(kind in kinds for kind, _ in media_in(value)))
    }


def is_media_column(name: str) -> bool:
    """True if a column holds media by its name, and so stays out of ``meta``."""
    return kind_of_column(name) is not None


def kind_of_column(name: str) -> str | None:
    """``image`` or ``video`` for a column whose name says that it holds them."""
    if name in IMAGES or _number(name) is not None:
        return "image"
    return "video" if name in VIDEOS else None


@lru_cache(maxsize=1 << 12)
def _number(name: str) -> int | None:
    """The number in ``image_2``, or None."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


FIELDS = (
    "question",
    "answer",
    "image",
    "video",
    "options",
    "answer_index",
    "task",
    "system",
)
"""What the converter ``rows`` takes from columns of any name."""

_NAMES = {
    "question": ("question", "problem", "prompt", "query", "instruction", "input", "text", "ques"),
    "answer": (
        "answer", "solution", "label", "ground_truth", "gold", "gt", "target", "output", "response",
        "caption",
    ),
    "image": (*IMAGES, "img", "img_path", "picture", "photo", "file_name", "filename"),
    "video": (*VIDEOS, "clip", "video_id"),
    "options": ("options", "choices", "candidates", "multi_choice"),
}  # fmt: skip


def guess(row: Row) -> dict[str, str]:
    """The columns that look like a question, an answer and so on, by field.

    A column is known by its name, or as a medium by its value.
    """
    found: dict[str, str] = {}
    lower = {str(name).lower(): str(name) for name, value in row.items() if value is not None}
    for field, names in _NAMES.items():
        column = next((lower[n] for n in names if n in lower), None)
        if column is not None and column not in found.values():
            found[field] = column
    for column, value in row.items():
        kind = next((kind for kind, _ in media_in(value)), None)
        if kind is not None and kind not in found and column not in found.values():
            found[kind] = str(column)
    return found


def remedy(row: Row) -> str:
    """Advice for a row of an unknown format: the command that converts it."""
    columns = guess(row)
    if "question" not in columns:
        named = ",".join(f"{field}=COLUMN" for field in FIELDS[:3])
        return (
            "if it has a question in some column, convert the file with mmr1-data convert rows "
            f"--map {named}; else set data.format"
        )
    mapped = ",".join(f"{field}={column}" for field, column in columns.items())
    return (
        f"these columns look like {mapped}; convert the file with mmr1-data convert rows "
        f"--input FILE --output FOLDER --map {mapped}"
    )
