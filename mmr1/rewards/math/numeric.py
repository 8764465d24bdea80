"""Numbers: equal within a stated tolerance, counted, or near."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mmr1.rewards.item import BadGoldError, no_answer, plain_value, references
from mmr1.rewards.math.sentences import without_explanation
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.latex import normalise
from mmr1.rewards.reading.numbers import MAX_DIGITS, parse_number
from mmr1.rewards.reading.qualifiers import is_qualified
from mmr1.rewards.reading.units import Unit, leading_unit, split_unit
from mmr1.rewards.reading.words import has_number_word, with_digits
from mmr1.types import Reward

MRA_LEVELS = tuple(Fraction(percent, 100) for percent in range(50, 100, 5))
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])[+-]?+(?:\d{1,3}+(?:,\d{3})++|\d++)?+(?:\.\d++)?+(?![A-Za-z0-9_.]*\d)"
)
_SHORT = 200
_MAX_TEXT = 10_000  # a longer answer is not a number with some words around it
# Beside one of these a number is part of an expression or a bound: 5x, 2^5, 5+, - 5.
_OPERATOR_BEFORE = re.compile(
    r"(?:[*/^×÷√|_\\+–−±-]|\\pm|\b(?:before|after|preceding|following|past|except|by))\s*$"
)
_OPERATOR_BEHIND = re.compile(r"\s*[*/^×÷!|+\u00b2\u00b3\u2070-\u207f\\?]|[A-Za-z_π(]|[-–]\w")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit, where it has one that is known."""

    value: Fraction
    unit: Unit | None = None


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

    Thousands separators, fractions, scientific notation, words for numbers and a unit are read; 42
    is 42.0. Text with one number in it means that number, unless it says something about it, such
    as "not 5" or "at least 5"; with several it scores 0. NaN and infinity are not numbers. Units
    are compared when both sides have one and dropped when one has.

    Args:
        completion: The whole completion.
        answer: The gold number; of a list of texts one is to be met.
        tolerance: Largest absolute difference.
        relative: Largest difference as a share of the gold's magnitude; the larger bound counts.
        precision: Decimal places that the answer is rounded to first, where the record has it by
            this name (MathVista).
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> numeric("<answer>1,042.0</answer>", 1042), numeric("<answer>9.9</answer>", 10)
    (1.0, 0.0)
    """
    golds, prediction = gold_quantities(answer), extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    quantity = read_quantity(prediction)
    for gold in golds:
        number = in_unit_of(gold, quantity)
        if number is None:
            continue
        if precision is not None:
            number = Fraction(round(number, int(precision)))
        bound = max(Fraction(str(tolerance)), Fraction(str(relative)) * abs(gold.value))
        if abs(number - gold.value) <= bound:
            return 1.0
    return 0.0


def count(completion: str, answer: Any, *, extract: Where = "auto") -> float | Reward:
    """1 where the answer is the gold count, else 0; ``three`` is 3.

    >>> count("<answer>There are three.</answer>", 3), count("<answer>3 or 4</answer>", 3)
    (1.0, 0.0)
    """
    golds, prediction = gold_quantities(answer), extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    quantity = read_quantity(prediction)
    return float(any(in_unit_of(gold, quantity) == gold.value for gold in golds))


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
    gold, prediction = gold_quantity(answer), extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    number = in_unit_of(gold, read_quantity(prediction))
    if number is None:
        return 0.0
    share: Fraction = abs(number - gold.value) / max(abs(gold.value), Fraction(floor))
    if mean_relative:
        return sum(share < 1 - level for level in MRA_LEVELS) / len(MRA_LEVELS)
    return float(1 - min(Fraction(1), share))


def number_gold(answer: Any) -> None:
    """Raises BadGoldError when the gold answer is not a finite number."""
    gold_quantities(answer)


def gold_quantities(answer: Any) -> list[Quantity]:
    """The golds of which one is to be met. Raises BadGoldError when one is not a number."""
    return [gold_quantity(gold) for gold in references(answer)]


def gold_quantity(answer: Any) -> Quantity:
    """The gold as an exact number. Raises BadGoldError when it is none."""
    answer = plain_value(answer)
    if isinstance(answer, bool) or not isinstance(answer, int | float | str):
        raise BadGoldError(f"the gold answer {answer!r:.60} is not a number")
    if isinstance(answer, int):
        return Quantity(Fraction(answer))
    quantity = read_quantity(extract_answer(str(answer), "whole") or "")
    if quantity is None:
        raise BadGoldError(f"the gold answer {answer!r:.60} is not a finite number")
    return quantity


def read_quantity(text: str) -> Quantity | None:
    """The one number of a text with its unit, or None where there is none or more than one.

    >>> [q and str(q.value) for q in map(read_quantity, ("about 3,200 kg", "3 of 4", "not 5"))]
    ['3200', None, None]
    """
    if number := parse_number(text):
        return Quantity(number.value)
    if len(text) > _MAX_TEXT:
        return None
    return _read_short(text) if len(text) <= _SHORT else _read(text)


def _read(text: str) -> Quantity | None:
    plain = with_digits(without_explanation(text))
    if len(plain) <= 4 * MAX_DIGITS:
        core, unit = split_unit(normalise(plain), bare_letters=True)
        if whole := parse_number(core):
            return Quantity(whole.value, unit)
    literals = [m for m in _NUMBER.finditer(plain) if any(c.isdigit() for c in m[0])]
    number = parse_number(literals[0][0]) if len(literals) == 1 else None
    if number is None:
        return None
    before, behind = plain[: literals[0].start()], plain[literals[0].end() :]
    unit = leading_unit(behind)
    if _OPERATOR_BEFORE.search(before[-16:]) or (not unit and _OPERATOR_BEHIND.match(behind)):
        return None
    if is_qualified(f"{before.rstrip()} 1 {behind.lstrip()}") or has_number_word(
        f"{before} {behind}"
    ):
        return None
    return Quantity(number.value, unit)


_read_short = lru_cache(8192)(_read)  # the answers of a group are few


def in_unit_of(gold: Quantity, answer: Quantity | None) -> Fraction | None:
    """The answer's number in the gold's unit; None where theirs measure other things."""
    if answer is None:
        return None
    if gold.unit is None or answer.unit is None:
        return answer.value
    if gold.unit.dimension != answer.unit.dimension:
        return None
    return answer.value * answer.unit.factor / gold.unit.factor
