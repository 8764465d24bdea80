"""Chat messages as other projects write them, as ``(role, text with tags)``."""

from __future__ import annotations

import json
from typing import Any

from mmr1.data.forms.form import Turns

_ROLES = {"human": "user", "gpt": "assistant", "observation": "user", "model": "assistant"}


def turns_of(messages: Any) -> Turns:
    """Chat messages, with a string or a list as content, as ``(role, text with tags)``."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except json.JSONDecodeError as error:
            raise ValueError(f"the messages are a text that is not JSON: {error}") from None
    turns = []
    for message in messages:
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(role, str) or content is None:
            raise ValueError("a message has no role or no content")
        turns.append((_ROLES.get(role, role), _text_with_tags(content)))
    return turns


def _text_with_tags(content: Any) -> str:
    if isinstance(content, str):
        return content
    pieces = []
    for item in content:
        kind = item.get("type")
        if kind not in ("text", "image", "video", "image_url"):
            raise ValueError(f"content of type {kind!r}; it can be text, image, image_url or video")
        tag = "<video>" if kind == "video" else "<image>"
        pieces.append(str(item.get("text") or "") if kind == "text" else tag)
    return "".join(pieces)


def part_media(messages: Any) -> list[Any]:
    """The image values inside contents that are lists, in order."""
    messages = json.loads(messages) if isinstance(messages, str) else messages
    return [
        item.get("image") or (item.get("image_url") or {}).get("url")
        for message in messages
        if isinstance(message["content"], list)
        for item in message["content"]
        if item.get("type") in ("image", "image_url")
    ]
