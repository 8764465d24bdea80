"""A reward of the quickstart's own: does the thought name the digit that the answer gives?

The other rewards look at the answer alone, and the thought would drift away from it.
"""

from __future__ import annotations

import re

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def reward(completion: str, answer: object, **sample: object) -> float:
    """1 when the thought names one digit and the answer is that digit, right or wrong."""
    given = re.search(r"<answer>\s*(\d)\s*</answer>", completion)
    thought = re.search(r"<think>(.*?)</think>", completion, re.S)
    if given is None or thought is None:
        return 0.0
    named = [word for word in re.findall(r"[a-z]+", thought[1].lower()) if word in WORDS]
    return float(named == [WORDS[int(given[1])]])
