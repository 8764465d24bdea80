"""Multiple choice: one letter, or the option's own text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmr1.rewards.item import BadGoldError
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.choices import options_by_letter, read_choice
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.read import score_answer
from mmr1.rewards.reading.stance import Unread
from mmr1.types import Reward


def gold_letter(
    answer: Any,
    options: Sequence[str] | Mapping[str, str] | None = None,
    choices: Sequence[str] | Mapping[str, str] | None = None,
) -> str:
    """Return the gold option's letter. Raises BadGoldError when the gold is none of the options."""
    text = extract_answer(str(answer), "whole") or "" if answer is not None else ""
    reading = read_choice(text, options_by_letter(options or choices))
    if isinstance(reading, Unread):
        raise BadGoldError(f"the gold answer {answer!r:.60} names none of the options")
    return reading.value


@reward(
    "choice",
    gold=gold_letter,
    tasks=("choice", "multiple choice", "mcq"),
    example={
        "completion": "<answer>(B) 5</answer>",
        "answer": "5",
        "options": ["4", "5"],
        "reward": 1,
    },
)
def choice(
    completion: str,
    answer: Any,
    options: Sequence[str] | Mapping[str, str] | None = None,
    choices: Sequence[str] | Mapping[str, str] | None = None,
    *,
    extract: Where = "auto",
) -> float | Reward:
    """1 where the answer names the gold option and no other, else 0.

    ``(B)``, ``B.``, ``Option b`` and ``B. 12 cm`` all name option B, and so does the text of
    option B by itself. Two different letters score 0, and so do a letter beside another option's
    text and a letter that is said not to be the answer, as in "not B" or "B is wrong".

    Args:
        completion: The whole completion.
        answer: The gold letter, or the text of the gold option.
        options: The item's options in order, or by letter; ``choices`` is the same.
        choices: See ``options``.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> choice("<answer>(B) 5</answer>", "B", options=["4", "5"])
    1.0
    >>> choice("<answer>A or B</answer>", "B").status, choice("<answer>C, not B</answer>", "C")
    (<Status.UNREAD: 'unread'>, 1.0)
    """
    texts = options_by_letter(options or choices)
    gold = gold_letter(answer, options=texts)
    return score_answer(
        completion, extract, lambda text: read_choice(text, texts), lambda r: float(r.value == gold)
    )
