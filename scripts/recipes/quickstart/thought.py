"""The quickstart's own measure: does the thought name the digit that the answer gives?

The other rewards look at the answer alone, and the thought would drift away from it. Agreement is
paid only where the answer is right: paid everywhere, it was learnt first, from any digit at all,
and the answers never caught up.
"""

from __future__ import annotations

import re

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def reward(completion: str, answer: str, **sample: object) -> float:
    """1 when thought and answer both give the right digit."""
    given = re.search(r"<answer>\s*(\d)\s*</answer>", completion)
    right = given is not None and given[1] == answer
    return float(right and agrees(completion))


def agrees(completion: str) -> bool:
    """Does the thought name one digit, and the answer give it, right or wrong?"""
    given = re.search(r"<answer>\s*(\d)\s*</answer>", completion)
    thought = re.search(r"<think>(.*?)</think>", completion, re.S)
    if given is None or thought is None:
        return False
    named = [word for word in re.findall(r"[a-z]+", thought[1].lower()) if word in WORDS]
    return named == [WORDS[int(given[1])]]
