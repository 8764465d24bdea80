"""The canonical record on disk, schema version 1.

The JSON schema beside this file (``record.schema.json``) is generated from these models:
``python -m mmr1.data.schema > mmr1/data/record.schema.json``.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mmr1.registry import suggest

VERSION = 1

Pixels = Annotated[int, Meta(gt=0)]


class TextItem(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Text, taken as it is."""

    text: str


class MediaItem(Struct, tag_field="type", forbid_unknown_fields=True):
    """An image or a video: a path, the encoded bytes, or the next of the record's lists."""

    path: Annotated[str | None, Meta(description="Relative to the record file or media root")] = (
        None
    )
    data: Annotated[str | None, Meta(description="The encoded file (PNG, MP4) in base64")] = None
    width: Annotated[Pixels | None, Meta(description="Of the original, upright")] = None
    height: Pixels | None = None
    options: Annotated[
        dict[str, Any], Meta(description="Video sampling (fps, start, end) and pixel budgets")
    ] = {}


class ImageItem(MediaItem, tag="image"):
    """An image."""


class VideoItem(MediaItem, tag="video"):
    """A video."""


class Turn(Struct, forbid_unknown_fields=True):
    """One message. In a string ``<image>`` and ``<video>`` stand for the record's media.

    ``tool``: what a tool answered to the assistant's turn before it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextItem | ImageItem | VideoItem]


class Record(Struct, forbid_unknown_fields=True):
    """One question, its media and its gold answer."""

    version: Annotated[Literal[1], Meta(description="Schema version")]
    id: Annotated[str, Meta(min_length=1, description="Unique within the file")]
    messages: Annotated[list[Turn], Meta(min_length=1)]
    images: Annotated[
        list[str] | None,
        Meta(description="Paths for the <image> tags of string contents, in their order"),
    ] = None
    videos: Annotated[
        list[str] | None, Meta(description="Paths for the <video> tags, in order")
    ] = None
    answer: Annotated[Any, Meta(description="Gold answer; boxes are xyxy in original pixels")] = (
        None
    )
    task: Annotated[
        str | None, Meta(description="math, choice, count, iou, …: picks the reward")
    ] = None
    source: Annotated[str | None, Meta(description="Name of the dataset")] = None
    meta: Annotated[dict[str, Any], Meta(description="Every other column")] = {}


def parse(row: Any) -> Record:
    """Check one row.

    Raises:
        ValueError: If the row is not a record; one line names the key and what to write instead.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a record is a JSON object, not {type(row).__name__}")
    if "version" not in row:
        raise ValueError(f'no "version": a canonical record carries "version": {VERSION}')
    try:
        return msgspec.convert(row, Record)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error))) from None


_AT = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


def _explain(message: str) -> str:
    """The error as one line: the key, the problem, and the nearest key if it is misspelt."""
    found = _AT.fullmatch(message)
    problem, where = (found[1], found[2] or "record") if found else (message, "record")
    where = re.sub(r"\[(\d+)\]", r".\1", where)
    if unknown := _UNKNOWN.fullmatch(problem):
        keys = ["text", "path", "data", *Record.__struct_fields__, *Turn.__struct_fields__]
        meant = "" if unknown[1] in keys else suggest(unknown[1], keys)  # a key, in another place
        within = "" if where == "record" else f"{where}."
        return f"unknown key '{within}{unknown[1]}'{meant}; put it under 'meta'"
    return f"'{where}': {problem}"


def json_schema() -> str:
    """The JSON schema of a record, as text."""
    return json.dumps(msgspec.json.schema(Record), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
