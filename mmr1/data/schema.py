"""The canonical record on disk, schema version 1.

The JSON schema beside this file (``record.schema.json``) is generated from these models:
``python -m mmr1.data.schema > mmr1/data/record.schema.json``.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmr1.registry import suggest
from mmr1.types import MediaKind

VERSION = 1

Pixels = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextItem(_Strict):
    """Text, taken as it is."""

    type: Literal["text"]
    text: str


class MediaItem(_Strict):
    """An image or a video: a path, the encoded bytes, or the next of the record's lists."""

    type: MediaKind
    path: str | None = Field(None, description="Relative to the record file or the media root")
    data: str | None = Field(None, description="The encoded file (PNG, MP4, …) in base64")
    width: Pixels | None = Field(None, description="Of the original, upright, in pixels")
    height: Pixels | None = None
    options: dict[str, Any] = Field(
        default_factory=dict, description="Video sampling (fps, start, end, …) and pixel budgets"
    )


class Turn(_Strict):
    """One message. In a string ``<image>`` and ``<video>`` stand for the record's media.

    ``tool``: what a tool answered to the assistant's turn before it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[Annotated[TextItem | MediaItem, Field(discriminator="type")]]


class Record(_Strict):
    """One question, its media and its gold answer."""

    version: Literal[1] = Field(description="Schema version")
    id: str = Field(min_length=1, description="Unique within the file")
    messages: list[Turn] = Field(min_length=1)
    images: list[str] | None = Field(
        None, description="Paths for the <image> tags of string contents, in their order"
    )
    videos: list[str] | None = Field(None, description="Paths for the <video> tags, in order")
    answer: Any = Field(None, description="Gold answer; boxes are xyxy in original pixels")
    task: str | None = Field(None, description="math, choice, count, iou, …: picks the reward")
    source: str | None = Field(None, description="Name of the dataset")
    meta: dict[str, Any] = Field(default_factory=dict, description="Every other column")


def parse(row: Any) -> Record:
    """Check one row.

    Raises:
        ValueError: One line that names the key and what to write instead.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a record is a JSON object, not {type(row).__name__}")
    if "version" not in row:
        raise ValueError(f'no "version": a canonical record carries "version": {VERSION}')
    try:
        return Record.model_validate(row)
    except ValidationError as error:
        raise ValueError(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    """The first error as one line: the key, the problem, and the nearest key if it is misspelt."""
    first = error.errors(include_url=False)[0]
    # pydantic puts the names of union members into the path; they are not keys of the row.
    union_members = {"str", "text", "list[tagged-union[TextItem,MediaItem]]"}
    union_members |= {*get_args(MediaKind)}
    *above, last = first["loc"] or ("record",)
    path = [p for p in above if isinstance(p, int) or p not in union_members]
    if first["type"] == "extra_forbidden" or last not in union_members:
        path.append(last)
    where = ".".join(str(p) for p in path) or "record"
    if first["type"] == "extra_forbidden":
        keys = ["text", "path", "data", *Record.model_fields, *Turn.model_fields]
        meant = "" if last in keys else suggest(str(last), keys)  # a key, in another place
        return f"unknown key '{where}'{meant}; put it under 'meta'"
    return f"'{where}': {first['msg']}"


def json_schema() -> str:
    """The JSON schema of a record, as text."""
    return json.dumps(Record.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
