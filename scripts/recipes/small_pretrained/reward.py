"""1 for a completion whose last line gives the right number."""

from __future__ import annotations

import re

_LINE = re.compile(r"answer:\s*\$?(-?\d+)\b", re.IGNORECASE)


def reward(completion: str, answer: str) -> float:
    """1 if the last `Answer: NUMBER` of the completion has the right number, else 0."""
    given = _LINE.findall(completion)
    return float(bool(given) and int(given[-1]) == int(answer))
