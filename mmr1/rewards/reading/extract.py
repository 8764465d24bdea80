"""Find the answer in a completion: one rule for every reward function.

The thinking is never read. In the rest, the last ``<answer>...</answer>`` holds the answer. If that
holds a balanced ``\\boxed{...}``, the last one is the answer.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from mmr1.rewards.reading.characters import clean

Where = Literal["answer", "boxed", "auto", "whole"]

_THINKING = re.compile(r"(?s)<think>.*?(?:</think>|\Z)")
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}\\]|[{}]")


def without_thinking(completion: str) -> str:
    """The completion without its thinking.

    A ``</think>`` that nothing opened ends a thinking that the prompt began; a ``<think>`` that
    nothing closes runs to the end.

    >>> without_thinking("<think>so 3</think><answer>4</answer>")
    '<answer>4</answer>'
    >>> without_thinking("it was begun for me</think>4")
    '4'
    >>> without_thinking("4 <think>or <answer>5</answer>")
    '4 '
    """
    if "think>" not in completion:
        return completion
    return _THINKING.sub("", completion).rpartition("</think>")[2]


def last_answer(text: str) -> str | None:
    """The content of the last ``<answer>...</answer>``, or None."""
    end = text.rfind("</answer>")
    if end < 0:
        return None
    start = text.rfind("<answer>", 0, end)
    return None if start < 0 else text[start + len("<answer>") : end]


def last_boxed(text: str) -> str | None:
    """The content of the last balanced ``\\boxed{...}``, or None.

    >>> last_boxed(r"\\boxed{1}, no: \\boxed{\\frac{1}{2}}")
    '\\\\frac{1}{2}'
    """
    found = boxed_values(text)
    return found[-1] if found else None


def boxed_values(text: str) -> list[str]:
    """Return the contents of all balanced ``\\boxed{...}`` that are in no other, in order."""
    if "box" not in text:
        return []
    found: list[tuple[int, int]] = []
    open_braces: list[int | None] = []  # where a box's content starts; None for a plain brace
    for token in _BRACE.finditer(text):
        if token[0] == "}":
            if open_braces and (start := open_braces.pop()) is not None:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, token.start()))
        elif token[0][-1] == "{" and token[0] != "\\{":
            open_braces.append(None if token[0] == "{" else token.end())
    return [text[start:end] for start, end in found]


def extract_answer(completion: str, where: Where = "auto", *, members: int = 1) -> str | None:
    """The answer's text, cleaned, or None where there is no answer.

    Args:
        completion: The whole completion.
        where: ``answer`` needs the tags. ``boxed`` needs a box, inside the tags if there are any.
            ``auto`` takes the tags, or else a box. ``whole`` takes the tags, or else everything
            but the thinking.
        members: Number of values of the gold answer. As many boxes are its members; of any other
            number of boxes the last counts.
    """
    if where not in get_args(Where):
        raise ValueError(f"extract={where!r}: known are {', '.join(get_args(Where))}")
    text = without_thinking(completion)
    tagged = last_answer(text)
    if tagged is None and where == "answer":
        return None
    scope = text if tagged is None else tagged
    if boxes := boxed_values(scope):
        return clean(", ".join(boxes) if len(boxes) == members else boxes[-1]) or None
    if where == "boxed" or (where == "auto" and tagged is None):
        return None
    return clean(scope) or None
