"""Numbers with their units: plain, in words, compound, and in sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import mul

from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.latex import normalise
from mmr1.rewards.reading.numbers import MAX_DIGITS, Number, parse_number, same_number
from mmr1.rewards.reading.stance import Reading, Unread, is_altered, read_asserted, states_none
from mmr1.rewards.reading.units import (
    PERCENT,
    THOUSAND,
    UNIT_WORD,
    Unit,
    leading_unit,
    parse_unit,
    split_unit,
)
from mmr1.rewards.reading.vocabulary import any_of, rewriter
from mmr1.rewards.reading.words import has_number_word, with_digits

_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])[+-]?+(?:\d{1,3}+(?:,\d{3})++|\d++)?+(?:\.\d++)?+(?![A-Za-z0-9_.]*\d)"
)
# Beside one of these a number is part of an expression or a bound: 5x, 2^5, 5+, - 5.
_OPERATOR_BEFORE = re.compile(
    r"(?:[*/^×÷√|_\\+–−±-]|\\pm|\b(?:before|after|preceding|following|past|except|"
    r"(?<!ed )(?<!grew )(?<!rose )(?<!fell )by))\s*$"
)
_OPERATOR_BEHIND = re.compile(r"\s*[*/^×÷!|+\u00b2\u00b3\u2070-\u207f\\?]|[A-Za-z_π(]|[-–]\w")
_MEASURE = rf"(\d+(?:\.\d+)?)\s*({UNIT_WORD}|['\"′″]|分)(?![A-Za-z])"
_COMPOUND = re.compile(rf"(?i){_MEASURE}(?:,?\s*(?:and\s+)?{_MEASURE})+")
_PART = re.compile(_MEASURE, re.IGNORECASE)
_MARKS = {"'": "ft", "′": "ft", '"': "in", "″": "in", "分": "min", "m": "min"}
_plainly = rewriter("quantities")
_YEAR = r"(?:1[5-9]|20)\d\d"
# A number that is not the one that a sentence states: a year, a part, the whole of a part.
_BESIDE = (
    re.compile(rf"(?i)\b(?:from|between)\s+{_YEAR}\s+(?:to|and|until)\s+{_YEAR}\b"),
    re.compile(rf"(?i)\b(?:in|by|of|since|from|for|during|until)\s+(?:the year\s+)?{_YEAR}\b"),
    re.compile(r"(?i)^\W*(?:of|in|by|at|on|from|out of|among|with|counting)\b[^,;]*[,:]\s"),
    re.compile(r"(?i)(?<=\d)\s+(?:out )?of (?:the|these|those|all)\s+\d+\b[^,;]*"),
    re.compile(r"(?i),\s*\d+ of (?:which|whom|them)\b.*"),
    re.compile(r"(?s)(?<=\d)([^\d:,;]*):\s.*"),
    re.compile(r"(?<=\S)\s*\([^()]*\)"),
)
_COPULA = re.compile(
    r"(?i)(?:\b(?:is|are|was|were|equals?|has|have|had|totals?|makes?|gives?)\b|=|≈|:)\s*"
    r"(?:(?:about|only|exactly|equal to|a total of)\s+)*[$€£¥]?\s*$"
)


# A number right behind another word is its name (step 7, the cube 3).
_LAST_WORD = re.compile(r"(?<!['’])\b([A-Za-z]+)[\s\"'(]*$")
_MAY_PRECEDE = re.compile("(?i)" + any_of("before_numbers"))
_LABEL = re.compile(r"(?:In |From )?[A-Z][a-z]+ ")
_TOTAL = re.compile(r"(?i)[^\d,.;]{0,40}\b(?:in total|altogether|overall)\b")
_UNFINISHED = re.compile(r"(?i)\b(?:is|are|was|were|equals|the|an?|of|to|that)\W*$")
_LISTED = re.compile(r"[^\d]{0,40}?(?:,|\band\b|\bor\b|\bplus\b)\s+\d")


def _names(before: str) -> bool:
    word = _LAST_WORD.search(before[-40:])
    return word is not None and _MAY_PRECEDE.fullmatch(word[1]) is None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it was written and its unit, where it has one that is known.

    A percentage is a number with the unit ``PERCENT``.
    """

    number: Number
    unit: Unit | None = None

    @property
    def value(self) -> Fraction:
        """The number, without its unit."""
        return self.number.value

    @property
    def meaning(self) -> tuple[Fraction, str]:
        """The number in base units, and the dimension; a percentage is a plain number."""
        if self.unit is None or self.unit == PERCENT or self.unit.is_unknown:
            return (self.value / 100 if self.unit == PERCENT else self.value), ""
        if self.unit == THOUSAND:
            return self.value * 1000, ""
        return (self.value + self.unit.offset) * self.unit.factor, self.unit.dimension


@lru_cache(8192)  # the answers of a group are few
def read_quantity(text: str, *, none_is_zero: bool = True) -> Reading[Quantity] | Unread:
    """Return the quantity that an answer asserts.

    Args:
        text: A cleaned answer.
        none_is_zero: Read "no cars" and "none" as 0; in mathematics they are no solution.

    >>> [str(read_quantity(t).value.value) for t in ("It is 5, not 6", "no cars", "5 ft 6 in")]
    ['5', '0', '66']
    >>> [read_quantity(t).reason for t in ("not 5", "3 of 4", "3 or 4")]
    ['only negated: not 5', 'no number', 'no number']
    """
    if number := parse_number(text):
        return Reading(Quantity(number), 0, len(text))
    whole = whole_quantity(text)
    if whole is not None:
        return Reading(whole, 0, len(text))
    return read_asserted(text, quantity_of if none_is_zero else _quantity_in, "number")


def quantity_of(piece: str) -> Quantity | None:
    """Return the one number that a piece of text states, with its unit, or None."""
    return Quantity(Number(0)) if states_none(piece) else _quantity_in(piece)


def _quantity_in(piece: str) -> Quantity | None:
    whole = whole_quantity(piece)
    return _stated(_spelled(unwrap(piece))) if whole is None else whole


def whole_quantity(text: str) -> Quantity | None:
    """Return the quantity that the whole text is, or None: a gold answer has no words around it."""
    if len(text) > 4 * MAX_DIGITS:
        return None
    core, unit = split_unit(_spelled(normalise(text)), bare_letters=True)
    number = parse_number(core)
    return None if number is None else Quantity(number, unit)


def _spelled(text: str) -> str:
    """Return a text with its numbers in digits and its compound quantities in one unit."""
    text = _plainly(text)
    return with_digits(_COMPOUND.sub(_joined, text) if _PART.search(text) else text)


def _joined(match: re.Match[str]) -> str:
    """Return a compound quantity (5 ft 6 in, 1 h 30 min) in its smallest unit, or as it is."""
    parts = _PART.findall(match[0])
    metres = parts[-1][1].lower() in ("cm", "mm") or "米" in parts[-1][1]  # 1 m 20 cm, 1 m 20 s
    names = [name if metres else _MARKS.get(name.lower(), name) for _, name in parts]
    units = [unit for unit in map(parse_unit, names) if unit is not None]
    factors = [unit.factor for unit in units]
    alike = len({unit.dimension for unit in units}) == 1 and not units[0].is_unknown
    if not alike or len(units) < len(parts) or factors != sorted(set(factors))[::-1]:
        return match[0]
    numbers = [Fraction(number) for number, _ in parts]
    return f"{sum(map(mul, numbers, factors)) / factors[-1]} {names[-1]}"


def _stated(text: str) -> Quantity | None:
    """Return the number that a sentence states: its only one, or the only one behind a verb."""
    plain = text
    for pattern in _BESIDE if len(_literals(plain)) > 1 else ():
        cut = pattern.sub(lambda m: m[1] if m.re.groups else " ", plain)
        plain = cut if _literals(cut) else plain
    literals = _literals(plain)
    if len(literals) > 1 and _LABEL.fullmatch(plain[: literals[0].start()]):
        literals = literals[1:]  # Figure 4 shows 7
    in_total = [match for match in literals if _TOTAL.match(plain[match.end() :])]
    literals = in_total if len(in_total) == 1 else literals
    if len({match[0] for match in literals}) > 1:
        literals = [m for m in literals if _COPULA.search(plain[: m.start()])]
        literals = literals[-1:] if "=" in plain else literals
    if len({match[0] for match in literals}) != 1:
        return None
    number = parse_number(literals[-1][0])
    before, behind = plain[: literals[-1].start()], plain[literals[-1].end() :]
    unit = leading_unit(behind)
    listed = _LISTED.match(behind) and len(_literals(plain)) > 1 and not in_total
    part = _OPERATOR_BEFORE.search(before[-16:]) or (not unit and _OPERATOR_BEHIND.match(behind))
    if number is None or listed or part or _names(before) or _UNFINISHED.search(behind):
        return None
    if is_altered(f"{before.rstrip()} 1 {behind.lstrip()}") or has_number_word(
        f"{before} {behind}"
    ):
        return None  # twice 5, 5 squared, half of 5: another number than 5
    return Quantity(number, unit)


def _literals(text: str) -> list[re.Match[str]]:
    return [m for m in _NUMBER.finditer(text) if any(c.isdigit() for c in m[0])]


# A word of two units is the one of the gold's kind: pounds, degrees.
_TWOFOLD = {"£": "mass", "temperature": "°"}


def candidates(gold: Quantity, answer: Quantity) -> list[Number]:
    """Return the answer's number in the gold's unit, in every way in which it may be meant.

    A percentage is a hundredth, whatever the reward; only a gold with the sign is also met by the
    number without it. Units are converted; left out on one side they do not count; another
    dimension has no number.
    """
    units = gold.unit, answer.unit
    if answer.unit == PERCENT and gold.unit != PERCENT:
        return [answer.number.times(Fraction(1, 100))]
    if gold.unit == PERCENT and answer.unit is None:
        return [answer.number, answer.number.times(Fraction(100))]
    if gold.unit == answer.unit:
        return [answer.number]
    if THOUSAND in units:
        scale = THOUSAND.factor if answer.unit == THOUSAND else 1 / THOUSAND.factor
        is_kelvin = any(unit and unit.dimension == "temperature" for unit in units)
        return [answer.number if is_kelvin else answer.number.times(scale)]
    if gold.unit is None or answer.unit is None:
        return [answer.number]
    if _TWOFOLD.get(gold.unit.dimension) == answer.unit.dimension:
        return [answer.number]
    if gold.unit.dimension != answer.unit.dimension:
        return []
    ratio = answer.unit.factor / gold.unit.factor
    return [answer.number.times(ratio, answer.unit.offset * ratio - gold.unit.offset)]


def distances(gold: Quantity, answer: Quantity, places: int | None = None) -> list[Fraction]:
    """Return how far an answer is from the gold, in its unit, in every way it may be meant."""
    values = [number.value for number in candidates(gold, answer)]
    rounded = values if places is None else [Fraction(round(value, places)) for value in values]
    return [abs(value - gold.value) for value in rounded]


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Return True if an answer is the gold in one of the ways in which it may be meant."""
    return any(same_number(gold.number, number) for number in candidates(gold, answer))
