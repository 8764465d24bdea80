"""The vocabulary of ``vocabulary.toml``, as alternatives of regular expressions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8")
)


def any_of(*names: str) -> str:
    """Return the entries of these lists as alternatives.

    >>> any_of("negating_letters")[:11]
    'least|worst'
    """
    return "|".join(entry for name in names for entry in VOCABULARY[name])


def words(*names: str) -> str:
    """Return the entries of these lists as alternatives that are whole words."""
    return rf"\b(?:{any_of(*names)})\b"


def rewriter(name: str) -> Callable[[str], str]:
    """Return the function that rewrites a text by these rules, one after the other.

    >>> rewriter("latex")(r"\\left(\\dfrac12, 3\\right)")
    '(\\\\frac12, 3)'
    """
    rules = [(re.compile(pattern), spelling) for pattern, spelling in VOCABULARY["rewritten"][name]]

    def rewrite(text: str) -> str:
        for pattern, spelling in rules:
            text = pattern.sub(spelling, text)
        return text

    return rewrite


def pairs(name: str) -> dict[str, str]:
    """Return a list of ``key=value`` as a mapping."""
    return dict(pair.split("=") for pair in VOCABULARY[name].split())
