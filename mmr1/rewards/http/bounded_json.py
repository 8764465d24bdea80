"""JSON from another machine: how deep it may nest is checked before it is parsed."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 32
MAX_CONTAINERS = 1_000_000  # lists and objects; an empty one is two bytes here and fifty in memory

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{\]}]', re.DOTALL)


def read_json(data: bytes, *, finite: bool = False) -> Any:
    """Parse JSON whose nesting and number of lists and objects are bounded.

    Args:
        data: The text.
        finite: Refuse numbers that are not, such as NaN and 1e400.

    Raises:
        ValueError: It is no JSON in UTF-8, nests deeper than ``MAX_DEPTH``, or holds more than
            ``MAX_CONTAINERS`` lists and objects.
    """
    depth = containers = 0
    for token in _TOKEN.finditer(data):
        kind = token[0][:1]
        if kind in b"[{":
            depth, containers = depth + 1, containers + 1
            if depth > MAX_DEPTH:
                raise ValueError(f"its JSON nests deeper than {MAX_DEPTH} levels")
            if containers > MAX_CONTAINERS:
                raise ValueError(f"its JSON holds more than {MAX_CONTAINERS:,} lists and objects")
        elif kind in b"]}":
            depth -= 1
    decoder = _FINITE if finite else json.JSONDecoder()
    try:
        return decoder.decode(data.decode())
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


_FINITE = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
