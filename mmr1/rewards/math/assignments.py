"""Several values, each with its name: a system's ``x=1, y=2`` and the roots ``x_1=2, x_2=-3``."""

from __future__ import annotations

import re
from functools import lru_cache

_SEPARATOR = re.compile(r"\s*(?:[,;\n]|\\\\|\b(?:and|or)\b|或|且|和)\s*")
_ASSIGNMENT = re.compile(
    r"((?:\\(?:angle|alpha|beta|theta|lambda)\s*)?(?:[A-Za-z]{0,4})'*)(_\{?\w+\}?)?\s*=\s*([^=<>]+)"
)
_TOGETHER = re.compile(r"\(\s*([A-Za-z](?:\s*,\s*[A-Za-z])+)\s*\)\s*=\s*\((.+)\)")
_OPENING, _CLOSING = "([{", ")]}"

Assignments = tuple[tuple[str, str, str], ...]
"""The name, its index and the value of each."""


def by_name(gold: str, prediction: str) -> tuple[str, str] | None:
    """Both sides as lists of values, where one of them gives several values their names.

    None where they are values of other names.

    The values of a system stand in a tuple in the order of their names, so each is compared with
    the value of the same name; roots are a list in any order.

    >>> by_name("x=1, y=2", "y=2 and x=1"), by_name("x=2 or x=-3", "x_1=-3, x_2=2")
    (('(1, 2)', '(1, 2)'), ('2, -3', '-3, 2'))
    """
    named = _assignments(gold), _assignments(prediction)
    systems = [bool(a) and len({name for name, _, _ in a}) == len(a) for a in named]
    roots = [len({name for name, _, _ in a}) == 1 for a in named]
    if all(systems):
        names = [sorted(name for name, _, _ in a) for a in named]
        if names[0] != names[1]:
            return None
        return _tuple(named[0]), _tuple(named[1])
    if named[0] and not named[1] and "=" in prediction:
        return gold, prediction  # equations to be solved, not values
    if systems[0] and not named[1]:
        bare = len(_split(prediction)) == len(named[0])
        return _tuple(named[0]), f"({prediction})" if bare else prediction
    if systems[1] and not named[0] and gold.startswith("("):
        return gold, _tuple(named[1])
    if (roots[0] or not named[0]) and (roots[1] or not named[1]):
        return _list(named[0]) or gold, _list(named[1]) or prediction
    return gold, prediction


@lru_cache(1024)
def _assignments(text: str) -> Assignments:
    """The assignments of a text that consists of two or more, else none."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2].strip()
    if together := _TOGETHER.fullmatch(text):
        names, values = _split(together[1]), _split(together[2])
        text = ", ".join(map("=".join, zip(names, values, strict=False)))
        text = text if len(names) == len(values) else ""
    matches = [_ASSIGNMENT.fullmatch(piece) for piece in _split(text)] if "=" in text else []
    if len(matches) < 2:
        return ()
    found = tuple(("".join(m[1].split()), m[2] or "", m[3].strip()) for m in matches if m and m[1])
    return found if len(found) == len(matches) else ()


def _split(text: str) -> list[str]:
    """The pieces between separators that stand in no bracket."""
    pieces, start, depth = [], 0, 0
    depths = []
    for c in text:
        depth += (c in _OPENING) - (c in _CLOSING)
        depths.append(depth)
    for separator in _SEPARATOR.finditer(text):
        if depths[separator.start()] == 0:
            pieces.append(text[start : separator.start()])
            start = separator.end()
    return [*pieces, text[start:]]


def _tuple(assignments: Assignments) -> str:
    return f"({', '.join(value for _, _, value in sorted(assignments))})"


def _list(assignments: Assignments) -> str:
    return ", ".join(value for _, _, value in assignments)
