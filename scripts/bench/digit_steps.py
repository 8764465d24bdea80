"""Step rewards for the quickstart's digits: 0.5 for the form of a step, 0.5 if it is right.

Both steps have the same maximum. All steps of a group are normalised together, so a step with a
lower maximum would always have a negative advantage.
"""

from __future__ import annotations

import re
from typing import Any

from datasets_prep.generators.common import WORDS

END = "</think>"


def judge(completion: str, sample: Any) -> list[tuple[int, float]]:
    """End and reward of both steps: the thought by the digit it names, the rest by its answer."""
    thought, closed, rest = completion.partition(END)
    digit = re.fullmatch(r"\s*<answer>(\d)</answer>\s*", rest)
    answer = (len(completion), graded(digit is not None, digit and digit[1] == sample.answer))
    if not closed:
        return [answer]
    named = WORDS[int(sample.answer)] in thought.split("is ")[-1]
    return [(len(thought) + len(END), graded(True, named)), answer]


def graded(formed: bool, true: bool | None) -> float:
    return 0.5 * formed + 0.5 * bool(true)
