"""A chat completion as a judge's reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered.

    Attributes:
        text: The assistant's message.
        prompt_tokens: As the server counted; 0 where it does not say.
        completion_tokens: Likewise.
        cut: The reply ended at ``max_tokens``.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cut: bool


def read_chat_completion(answer: Any) -> Reply:
    """A server's JSON. Raises ValueError where it is no chat completion."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("its JSON is no chat completion") from None
    if not isinstance(text, str):
        raise ValueError("its chat completion has no text")
    usage = answer.get("usage") or {}
    return Reply(
        text,
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        choice.get("finish_reason") == "length",
    )


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
