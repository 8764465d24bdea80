"""1 for a completion whose last number is the answer."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def reward(completion: str, answer: str) -> float:
    """1 if the last number of the completion is the answer, else 0."""
    numbers = _NUMBER.findall(completion)
    return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer))
