"""Conversations with an environment as messages of a record."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def messages_of(completion: Mapping[str, Any], place: str) -> list[Message]:
    """The turns of the assistant, and the environment's answers with the role ``tool``.

    Pictures have the paths of their files, which :func:`embedded` reads.

    Raises:
        ValueError: The turns do not say what the environment answered.
    """
    return [message for turn in completion["turns"] for message in _of_turn(turn, place)]


def texts_of(messages: list[Message]) -> list[str]:
    """All their texts."""
    texts = []
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part["text"] for part in parts if "text" in part]
    return texts


def embedded(message: Message) -> Message:
    """The message with its pictures in it: those of tools have no file in a data set.

    Raises:
        OSError: A file of the run is no longer there.
    """
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [_embedded(part) for part in content]}


def _of_turn(turn: Mapping[str, Any], place: str) -> list[Message]:
    if turn["role"] == "assistant":
        return [{"role": "assistant", "content": turn["text"]}]
    if not turn.get("answers"):
        raise ValueError(
            f"{place}: its turns do not say how the environment's answers are written: they are of "
            "an evaluation or of an older version, or have the chat template's own tokens in them; "
            "name the rollouts of a run"
        )
    return [
        {"role": "tool", "content": [_part(part, turn["media"]) for part in answer]}
        for answer in turn["answers"]
    ]


def _part(part: Mapping[str, Any], media: list[Mapping[str, Any]]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    medium = media[part["medium"]]
    return {"type": medium["kind"], "path": medium["path"]}


def _embedded(part: Mapping[str, Any]) -> dict[str, Any]:
    if "path" not in part:
        return dict(part)
    data = base64.b64encode(Path(part["path"]).read_bytes()).decode()
    return {"type": part["type"], "data": data}
