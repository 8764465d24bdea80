"""Numbers: equal within a stated tolerance, counted, or near."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mmr1.rewards.item import BadGoldError, plain_value, references
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.quantities import Quantity, distances, read_quantity, whole_quantity
from mmr1.rewards.reading.read import score_answer
from mmr1.rewards.reading.stance import Reading, is_negated
from mmr1.section import Coefficient
from mmr1.types import Reward

MRA_LEVELS = tuple(Fraction(percent, 100) for percent in range(50, 100, 5))


def gold_quantities(answer: Any) -> list[Quantity]:
    """The golds of which one is to be met. Raises BadGoldError when one is not a number."""
    return [gold_quantity(gold) for gold in references(answer)]


def gold_quantity(answer: Any) -> Quantity:
    """The gold as an exact number. Raises BadGoldError when it is none."""
    answer = plain_value(answer)
    if isinstance(answer, bool) or not isinstance(answer, int | float | str):
        raise BadGoldError(f"the gold answer {answer!r:.60} is not a number")
    text = extract_answer(str(answer), "whole") or ""
    reading = read_quantity(text)
    if not reading or (is_negated(text) and whole_quantity(text) is None):
        raise BadGoldError(f"the gold answer {answer!r:.60} is not a finite number")
    return reading.value


@reward(
    "numeric",
    gold=gold_quantities,
    tasks=("numeric", "numerical"),
    example={"completion": "<answer>10.0</answer>", "answer": 10, "reward": 1},
)
def numeric(
    completion: str,
    answer: Any,
    precision: float | None = None,
    *,
    tolerance: float = 0.0,
    relative: float = 0.0,
    extract: Where = "auto",
) -> float | Reward:
    """1 where the answer's number is within the tolerance of the gold number, else 0.

    Thousands separators, fractions, scientific notation, words for numbers, percentages and units
    are read; 42 is 42.0. A sentence means the number that it states, unless it says something about
    it, such as "not 5" or "at least 5". NaN and infinity are not numbers. Units are compared when
    both sides have one and dropped when one has.

    Args:
        completion: The whole completion.
        answer: The gold number, with or without a unit; of a list of texts one is to be met.
        tolerance: Largest absolute difference.
        relative: Largest difference as a share of the gold's magnitude; the larger bound counts.
        precision: Decimal places that the answer is rounded to first, where the record has it by
            this name (MathVista).
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> numeric("<answer>1,042.0</answer>", 1042), numeric("<answer>9.9</answer>", 10)
    (1.0, 0.0)
    """
    golds = gold_quantities(answer)
    places = None if precision is None else int(precision)

    def is_near(gold: Quantity, reading: Reading[Quantity]) -> bool:
        bound = max(Fraction(str(tolerance)), Fraction(str(relative)) * abs(gold.value))
        return any(distance <= bound for distance in distances(gold, reading.value, places))

    return score_answer(
        completion, extract, read_quantity, lambda r: float(any(is_near(g, r) for g in golds))
    )


@reward(
    "count",
    gold=gold_quantities,
    tasks=("count", "counting"),
    example={"completion": "<answer>There are three.</answer>", "answer": 3, "reward": 1},
)
def count(completion: str, answer: Any, *, extract: Where = "auto") -> float | Reward:
    """1 where the answer is the gold count, else 0; ``three`` is 3, and ``no cars`` is 0.

    Args:
        completion: The whole completion.
        answer: The gold count, with or without a unit; of a list of texts one is to be met.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> count("<answer>There are three.</answer>", 3), count("<answer>3 or 4</answer>", 3).status
    (1.0, <Status.UNREAD: 'unread'>)
    """
    return numeric(completion, answer, extract=extract)


@reward(
    "regression",
    paper="2412.14171",
    gold=gold_quantity,
    tasks=("regression",),
    example={"completion": "<answer>9</answer>", "answer": 10, "reward": 0.9},
)
def regression(
    completion: str,
    answer: Any,
    *,
    floor: Coefficient = 1e-6,
    mean_relative: bool = False,
    extract: Where = "auto",
) -> float | Reward:
    """1 - min(1, |answer - gold| / max(|gold|, floor)): 1 when exact, 0 when a whole gold away.

    Args:
        completion: The whole completion.
        answer: The gold number, with or without a unit.
        floor: Smallest scale, for golds at or near 0; in the gold's unit, above 0.
        mean_relative: Pay the mean relative accuracy of VSI-Bench (arXiv:2412.14171, eq. 1)
            instead: the share of 0.5, 0.55, ..., 0.95 that the value above reaches beyond.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> regression("<answer>9</answer>", 10), regression("<answer>nan</answer>", 10).error
    (0.9, 'no number')
    """
    gold = gold_quantity(answer)

    def score(reading: Reading[Quantity]) -> float:
        nearest = min(distances(gold, reading.value), default=abs(gold.value) + 1)
        share = nearest / max(abs(gold.value), Fraction(floor))
        if mean_relative:
            return sum(share < 1 - level for level in MRA_LEVELS) / len(MRA_LEVELS)
        return float(1 - min(Fraction(1), share))

    return score_answer(completion, extract, read_quantity, score)
