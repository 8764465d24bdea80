"""The options of a multiple-choice question."""

from __future__ import annotations

import re
from collections.abc import Sequence

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def with_options(question: str, options: Sequence[str] | None) -> str:
    """The question and its options, each on a line with its letter.

    >>> print(with_options("Which?", ["red", "(B) blue"]))
    Which?
    A. red
    B. blue
    """
    if not options:
        return question
    plain = [re.sub(r"^\(?[A-Z][.):]\)?\s*", "", str(option).strip()) for option in options]
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, plain, strict=False)]
    return "\n".join([question, *lines])
