"""Numbers: equal within a stated tolerance, counted, or near."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from mmr1.rewards.extract import Where, extract_answer
from mmr1.rewards.item import BadGoldError, no_answer
from mmr1.rewards.math.latex import normalise
from mmr1.rewards.math.numbers import MAX_DIGITS, parse_number
from mmr1.rewards.math.units import split_unit
from mmr1.types import Reward

MRA_LEVELS = tuple(Fraction(percent, 100) for percent in range(50, 100, 5))
_NUMBER = re.compile(r"(?<![\w.])[+-]?+(?:\d{1,3}+(?:,\d{3})++|\d++)?+(?:\.\d++)?+(?![\w.]*\d)")
_MAX_TEXT = 10_000  # a longer answer is not a number with some words around it
_TO_TEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_TEENS = [f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")]
_WORDS = [*_TO_TEN, "eleven", "twelve", *_TEENS, "twenty"]
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b")


def numeric(
    completion: str,
    answer: Any,
    *,
    tolerance: float = 0.0,
    relative: float = 0.0,
    precision: float | None = None,
    extract: Where = "auto",
) -> float | Reward:
    """1 where the answer's number is within the tolerance of the gold number, else 0.

    Thousands separators, fractions, scientific notation and a unit are read; 42 is 42.0. Text with
    one number in it means that number; with several it scores 0. NaN and infinity are no numbers.

    Args:
        completion: The whole completion.
        answer: The gold number.
        tolerance: Largest absolute difference.
        relative: Largest difference as a share of the gold's magnitude; the larger bound counts.
        precision: Decimal places that the answer is rounded to first, where the record has it by
            this name (MathVista).
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> numeric("<answer>1,042.0</answer>", 1042), numeric("<answer>9.9</answer>", 10)
    (1.0, 0.0)
    """
    gold = gold_number(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    number = read_number(prediction)
    if number is not None and precision is not None:
        number = Fraction(round(number, int(precision)))
    bound = max(Fraction(tolerance), Fraction(relative) * abs(gold))
    return float(number is not None and abs(number - gold) <= bound)


def count(completion: str, answer: Any, *, extract: Where = "auto") -> float | Reward:
    """1 where the answer is the gold count, else 0; ``three`` is 3 up to twenty.

    >>> count("<answer>There are three.</answer>", 3), count("<answer>3 or 4</answer>", 3)
    (1.0, 0.0)
    """
    gold = gold_number(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    if len(prediction) <= 200:
        prediction = _WORD.sub(lambda m: str(_WORDS.index(m[0])), prediction.lower())
    return float(read_number(prediction) == gold)


def regression(
    completion: str,
    answer: Any,
    *,
    floor: float = 1e-6,
    mean_relative: bool = False,
    extract: Where = "auto",
) -> float | Reward:
    """1 - min(1, |answer - gold| / max(|gold|, floor)): 1 when exact, 0 when a whole gold away.

    Args:
        completion: The whole completion.
        answer: The gold number.
        floor: Smallest scale, for golds at or near 0; in the gold's unit, above 0.
        mean_relative: Pay the mean relative accuracy of VSI-Bench (arXiv:2412.14171, eq. 1)
            instead: the share of 0.5, 0.55, ..., 0.95 that the value above reaches beyond.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> regression("<answer>9</answer>", 10), regression("<answer>nan</answer>", 10)
    (0.9, 0.0)
    """
    if not floor > 0:
        raise ValueError(f"floor={floor}: it must be above 0")
    gold = gold_number(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    number = read_number(prediction)
    if number is None:
        return 0.0
    share: Fraction = abs(number - gold) / max(abs(gold), Fraction(floor))
    if mean_relative:
        return sum(share < 1 - level for level in MRA_LEVELS) / len(MRA_LEVELS)
    return float(1 - min(Fraction(1), share))


def number_gold(answer: Any) -> None:
    """Raises BadGoldError when the gold answer is no finite number."""
    gold_number(answer)


def gold_number(answer: Any) -> Fraction:
    """The gold as an exact number. Raises BadGoldError when it is none."""
    if isinstance(answer, bool) or not isinstance(answer, int | float | str):
        raise BadGoldError(f"the gold answer {answer!r:.60} is no number")
    if isinstance(answer, int):
        return Fraction(answer)
    text = repr(answer) if isinstance(answer, float) else str(answer)
    number = read_number(extract_answer(text, "whole") or "")
    if number is None:
        raise BadGoldError(f"the gold answer {answer!r:.60} is no finite number")
    return number


def read_number(text: str) -> Fraction | None:
    """The one number of a text, or None where there is none or more than one.

    >>> read_number("about 3,200 kg"), read_number("3 of 4"), read_number("\\\\frac{1}{2}")
    (Fraction(3200, 1), None, Fraction(1, 2))
    """
    if len(text) > _MAX_TEXT:
        return None
    if len(text) <= 4 * MAX_DIGITS:
        core, _ = split_unit(normalise(text), bare_letters=True)
        if whole := parse_number(core):
            return whole.value
    literals = [m[0] for m in _NUMBER.finditer(text) if any(c.isdigit() for c in m[0])]
    number = parse_number(literals[0]) if len(literals) == 1 else None
    return number.value if number else None
