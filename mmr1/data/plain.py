"""Records in the usual form, read without the schema, which takes five times as long.

What is here accepts no row that the schema refuses, and makes the same sample of the others. Rows
that it does not know go to the schema, which reads the rare forms and explains what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from mmr1.data.schema import VERSION
from mmr1.types import ContentPart, MediaKind, MediaRef, Message, Sample, TextPart

Find = Callable[[Path, str], Path]
"""From the media root and the name of a medium to its file; raises ValueError if there is none."""

_Pixels = Annotated[int, Meta(gt=0)]


class _Text(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    text: str


class _Medium(Struct, tag_field="type", forbid_unknown_fields=True):
    path: str
    width: _Pixels | None = None
    height: _Pixels | None = None
    options: dict[str, Any] = {}


class _Image(_Medium, tag="image"):
    pass


class _Video(_Medium, tag="video"):
    pass


_Item = _Text | _Image | _Video


class _Turn(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str | list[_Item]


class _Record(Struct, forbid_unknown_fields=True):
    version: Literal[1]
    id: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[_Turn], Meta(min_length=1)]
    answer: Any = None
    task: str | None = None
    source: str | None = None
    meta: dict[str, Any] = {}


assert VERSION == 1


class _UnusualError(Exception):
    """The row needs the schema."""


def plain_sample(row: Any, root: Path, find: Find) -> Sample | None:
    """The sample of a record whose media are named where they stand; None for any other row.

    Raises:
        ValueError: A medium is not there.
    """
    if type(row) is not dict:
        return None
    try:
        record = convert(row, _Record)
        for text in (record.id, record.task, record.source):
            _check_text(text or "")
        for turn in record.messages:
            _check_turn(turn)
    except (ValidationError, UnicodeError, _UnusualError):
        return None
    messages = tuple(
        [Message(turn.role, _parts(turn.content, root, find)) for turn in record.messages]
    )
    return Sample(record.id, messages, record.answer, record.task, record.source, record.meta)


def _check_turn(turn: _Turn) -> None:
    if isinstance(turn.content, str):
        _check_question(turn.content)
        return
    for item in turn.content:
        if isinstance(item, _Text):
            _check_question(item.text)
        else:
            _check_text(item.path)
            if (item.width is None) != (item.height is None):
                raise _UnusualError


def _check_question(text: str) -> None:
    if "<" in text:  # a tag, a token of the model
        raise _UnusualError
    _check_text(text)


def _check_text(text: str) -> None:
    """Refuse a text that UTF-8 cannot encode, such as half of a surrogate pair."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _UnusualError from None


def _parts(content: str | list[_Item], root: Path, find: Find) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(
        [
            TextPart(item.text) if isinstance(item, _Text) else _medium(item, root, find)
            for item in content
        ]
    )


_KINDS: dict[type[_Medium], MediaKind] = {_Image: "image", _Video: "video"}


def _medium(item: _Medium, root: Path, find: Find) -> MediaRef:
    size = (item.width, item.height) if item.width and item.height else None
    return MediaRef(_KINDS[type(item)], find(root, item.path), None, size, item.options)
