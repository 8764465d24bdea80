"""A reward function of the quickstart, for thoughts that name the digit of the answer.

The other reward functions look at the answer only, so the thought could drift away from it.
Agreement counts only where the answer is right; otherwise the model learns to agree on any digit
first, and its answers stay wrong.
"""

from __future__ import annotations

import re

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def reward(completion: str, answer: str, **sample: object) -> float:
    """1 if thought and answer both give the right digit."""
    digit = re.search(r"<answer>\s*(\d)\s*</answer>", completion)
    right = digit is not None and digit[1] == answer
    return float(right and agrees(completion))


def agrees(completion: str) -> bool:
    """True if the thought names one digit, and the answer the same one, right or wrong."""
    digit = re.search(r"<answer>\s*(\d)\s*</answer>", completion)
    thought = re.search(r"<think>(.*?)</think>", completion, re.S)
    if digit is None or thought is None:
        return False
    named = [word for word in re.findall(r"[a-z]+", thought[1].lower()) if word in WORDS]
    return named == [WORDS[int(digit[1])]]
