"""Step rewards for the quickstart's digits: half for a step's form, half for its truth.

Both steps are paid alike. Steps are normalised over the group together, so a step that is paid less
than the others has a negative advantage however it went, and is unlearnt.
"""

from __future__ import annotations

import re
from typing import Any

from datasets_prep.generators.common import WORDS

END = "</think>"


def judge(completion: str, sample: Any) -> list[tuple[int, float]]:
    """The thought by its end and the digit it names, the rest by the answer it gives."""
    thought, closed, rest = completion.partition(END)
    given = re.fullmatch(r"\s*<answer>(\d)</answer>\s*", rest)
    answer = (len(completion), graded(given is not None, given and given[1] == sample.answer))
    if not closed:
        return [answer]
    named = WORDS[int(sample.answer)] in thought.split("is ")[-1]
    return [(len(thought) + len(END), graded(True, named)), answer]


def graded(formed: bool, true: bool | None) -> float:
    return 0.5 * formed + 0.5 * bool(true)
