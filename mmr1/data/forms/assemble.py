"""Build a ``Sample`` from the values of a row, whatever format the row has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmr1.data.forms.form import Place, Row, Turns
from mmr1.data.media_values import media_refs
from mmr1.data.placeholders import fill, prepend
from mmr1.types import MediaRef, Message, Sample, TextPart


def assemble(
    row: Row,
    place: Place,
    turns: Turns,
    *,
    images: Any = None,
    videos: Any = None,
    answer: Any = None,
    task: str | None = None,
    used: Sequence[str] = (),
    untagged: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Sample:
    """Build a sample from the values of a row.

    Args:
        row: Its unused columns go to ``meta``.
        place: For the id and the media root.
        turns: ``(role, text with tags)`` of each message.
        images: The value of the image column, in the order of the tags.
        videos: The value of the video column.
        answer: Gold answer.
        task: Task type.
        used: Columns that do not go to ``meta``.
        untagged: Put the media before the question if the text has no tags.
        meta: More entries of ``meta``.
    """
    image_refs = media_refs("image", images, place.root)
    video_refs = media_refs("video", videos, place.root)
    if untagged and (image_refs or video_refs):
        turns = prepend(turns, len(image_refs), len(video_refs))
    return Sample(
        id=f"{place.source}-{place.index:06d}",
        messages=fill(turns, image_refs, video_refs),
        answer=answer,
        task=task,
        source=place.source,
        meta={**other_columns(row, used), **(meta or {})},
    )


def other_columns(row: Row, used: Sequence[str]) -> dict[str, Any]:
    """The non-empty columns that JSON can represent; ``id`` becomes ``source_id``."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if name in used or name in ("image", "images", "video", "videos", "image_path"):
            continue
        if value is None or value == [] or value == "":
            continue
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue  # bytes, arrays and NaN have no place in a record
        columns["source_id" if name == "id" else name] = value
    return columns


def with_size(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample with the original size stated at its one medium."""

    def sized(message: Message) -> Message:
        return Message(
            message.role,
            tuple(
                part
                if isinstance(part, TextPart)
                else MediaRef(part.kind, part.path, part.data, size, part.options)
                for part in message.parts
            ),
        )

    messages = tuple(sized(message) for message in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
