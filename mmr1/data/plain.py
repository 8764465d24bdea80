"""Records in the usual form, read without the schema, which takes five times as long.

What is here accepts no row that the schema refuses, and makes the same sample of the others. Rows
that it does not know go to the schema, which reads the rare forms and explains what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmr1.data.schema import VERSION
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart

Find = Callable[[Path, str], Path]
"""From the media root and the name of a medium to its file; raises ValueError if there is none."""

_KEYS = frozenset({"version", "id", "messages", "answer", "task", "source", "meta"})
_ROLES = frozenset({"system", "user", "assistant"})
_MEDIUM = frozenset({"type", "path", "width", "height", "options"})


def plain_sample(row: Any, root: Path, find: Find) -> Sample | None:
    """The sample of a record whose media are named where they stand; None for any other row.

    Raises:
        ValueError: A medium is not there.
    """
    if type(row) is not dict or not row.keys() <= _KEYS or type(row.get("version")) is not int:
        return None
    name, turns, task = row.get("id"), row.get("messages"), row.get("task")
    source, meta = row.get("source"), row.get("meta", {})
    if (
        row["version"] != VERSION
        or not _is_text(name)
        or not name
        or not (task is None or _is_text(task))
        or not (source is None or _is_text(source))
        or type(meta) is not dict
        or type(turns) is not list
        or not turns
        or not all(map(_is_plain, turns))
    ):
        return None
    messages = tuple(_message(turn, root, find) for turn in turns)
    return Sample(name, messages, row.get("answer"), task, source, dict(meta))


def _is_plain(turn: Any) -> bool:
    if type(turn) is not dict or len(turn) != 2:
        return False
    role, content = turn.get("role"), turn.get("content")
    if type(role) is not str or role not in _ROLES:
        return False
    if type(content) is str:
        return "<" not in content and _is_text(content)  # "<": a tag, a token of the model
    return type(content) is list and all(map(_is_plain_item, content))


def _is_plain_item(item: Any) -> bool:
    if type(item) is not dict:
        return False
    kind = item.get("type")
    if kind == "text":
        return len(item) == 2 and _is_text(item.get("text")) and "<" not in item["text"]
    if kind not in ("image", "video") or not item.keys() <= _MEDIUM:
        return False
    width, height = item.get("width"), item.get("height")
    sized = type(width) is int and type(height) is int and width > 0 and height > 0
    return (
        _is_text(item.get("path"))
        and (sized or (width is None and height is None))
        and type(item.get("options", {})) is dict
    )


def _is_text(value: Any) -> bool:
    """Whether it is a text that UTF-8 has, without half of a surrogate pair."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(turn: dict[str, Any], root: Path, find: Find) -> Message:
    content = turn["content"]
    if type(content) is str:
        return Message(turn["role"], (TextPart(content),) if content else ())
    return Message(turn["role"], tuple(_part(item, root, find) for item in content))


def _part(item: dict[str, Any], root: Path, find: Find) -> ContentPart:
    if item["type"] == "text":
        return TextPart(item["text"])
    width = item.get("width")
    size = None if width is None else (width, item["height"])
    return MediaRef(item["type"], find(root, item["path"]), None, size, item.get("options", {}))
