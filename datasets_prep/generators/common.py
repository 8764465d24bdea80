"""Helpers of the generators: messages, demonstrations, splits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmr1.types import MediaRef, Message, Sample, TextPart

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def ask(media: Sequence[MediaRef], question: str) -> Message:
    """The media, then the question."""
    return Message("user", (*media, TextPart(question)))


def demonstrate(thought: str, answer: str) -> Message:
    """A reply in the think–answer form."""
    return Message("assistant", (TextPart(f"<think>{thought}</think><answer>{answer}</answer>"),))


def said(text: str) -> Message:
    return Message("assistant", (TextPart(text),))


def tool_call(name: str, **arguments: Any) -> str:
    """A call in Qwen's form."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def numbered_splits(
    sizes: Mapping[str, int], make: Callable[[str, int, bool], Sample]
) -> dict[str, list[Sample]]:
    """Samples of every split, made by ``make(split, number, with_demonstration)``.

    Those of splits whose names end in ``sft`` have demonstrations.
    """
    return {
        split: [make(split, number, split.endswith("sft")) for number in range(size)]
        for split, size in sizes.items()
    }


def sample(
    id: str, messages: Sequence[Message], answer: Any, task: str, source: str, **meta: Any
) -> Sample:
    """A sample whose other columns are keywords."""
    return Sample(id, tuple(messages), answer, task, source, meta)
