"""Does a completion have the template's shape? Tags are scanned, not matched by a lazy regex."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

from mmr1.rewards.extract import last_boxed, without_thinking

Template = Literal["think-answer", "think-boxed", "answer-only", "boxed"]

_TAG = re.compile(r"</?(?:think|answer)>")


def _sections(completion: str, names: tuple[str, ...]) -> list[str] | None:
    """The contents of exactly these sections, in this order, or None.

    Each of their tags must occur exactly once, and no other tag. Only whitespace may surround the
    sections. It is a single pass, so the time is linear in the length.
    """
    expected_tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    position, contents = 0, []
    tags = _TAG.finditer(completion)
    for index, expected_tag in enumerate(expected_tags):
        tag = next(tags, None)
        if tag is None or tag[0] != expected_tag:
            return None
        between = completion[position : tag.start()]
        if index % 2:
            contents.append(between)
        elif between.strip():
            return None
        position = tag.end()
    if next(tags, None) is not None or completion[position:].strip():
        return None
    return contents


def _think_answer(completion: str) -> bool:
    contents = _sections(completion, ("think", "answer"))
    return contents is not None and bool(contents[1].strip())


def _answer_only(completion: str) -> bool:
    contents = _sections(completion, ("answer",))
    return contents is not None and bool(contents[0].strip())


def _boxed(completion: str) -> bool:
    return not _TAG.search(completion) and _one_box(completion)


def _think_boxed(completion: str) -> bool:
    end = completion.find("</think>") + len("</think>")
    contents = _sections(completion[:end], ("think",))
    return contents is not None and _boxed(completion[end:])


def _one_box(text: str) -> bool:
    return len(re.findall(r"\\boxed\s*\{", text)) == 1 and bool((last_boxed(text) or "").strip())


TEMPLATES: dict[Template, Callable[[str], bool]] = {
    "think-answer": _think_answer,
    "think-boxed": _think_boxed,
    "answer-only": _answer_only,
    "boxed": _boxed,
}


def format(completion: str, *, template: Template = "think-answer", partial: bool = False) -> float:
    """1 where the completion has the template's shape, else 0.

    ``think-answer`` is exactly one ``<think>...</think>`` and then one ``<answer>...</answer>``
    with only whitespace around and between them and an answer that is not empty. ``think-boxed``
    is one thinking and then text with one ``\\boxed{...}``; ``answer-only`` and ``boxed`` are the
    same without the thinking.

    Args:
        completion: The whole completion.
        template: The name of the shape.
        partial: Give a broken ``think-answer`` or ``answer-only`` 0.5 times the share of its tags
            that occur exactly once.

    Raises:
        ValueError: No template has this name.
    """
    if template not in TEMPLATES:
        raise ValueError(f"template={template!r}: known are {', '.join(get_args(Template))}")
    if TEMPLATES[template](completion):
        return 1.0
    return 0.5 * _tag_share(completion, template) if partial else 0.0


def _tag_share(completion: str, template: Template) -> float:
    names = [name for name in ("think", "answer") if name in template]
    tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    if "boxed" in template:
        tags.append("\\boxed{")
        completion = completion if "think" in template else without_thinking(completion)
    return sum(completion.count(tag) == 1 for tag in tags) / len(tags)
