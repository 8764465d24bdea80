"""Plain numbers: exact values, and when a decimal stands for another number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 60  # longer literals are left to the sandbox

_INTEGER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(rf"(?:{_INTEGER})?\.\d+|{_INTEGER}\.?")
_SCIENTIFIC = re.compile(
    r"([+-]?\d+(?:\.\d+)?)(?:[eE]([+-]?\d{1,3})"
    r"|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{([+-]?\d{1,3})\}|([+-]?\d{1,3})))"
)
_RATIO = re.compile(r"([+-]?\d+)\s*/\s*([+-]?\d+)")
_FRACTION = re.compile(
    r"([+-]?)\s*(\d*)\s*\\frac\s*(?:\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}|(\d)(\d))"
)
_MIXED = re.compile(r"([+-]?)\s*(\d+)\s+(\d+)\s*/\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written.

    Attributes:
        value: Its exact value.
        decimals: Digits after the point; 0 for integers and fractions, which are exact.
    """

    value: Fraction
    decimals: int = 0


def parse_number(text: str) -> Number | None:
    """An integer, decimal, fraction, mixed or scientific number, or None.

    >>> parse_number("1,234.50"), parse_number("3 1/2"), parse_number("\\\\frac{1}{0}")
    (Number(value=Fraction(2469, 2), decimals=2), Number(value=Fraction(7, 2), decimals=0), None)
    """
    if len(text) > MAX_DIGITS:
        return None
    if _DECIMAL.fullmatch(text):
        digits = text.replace(",", "").rstrip(".")
        return Number(Fraction(digits), len(digits.partition(".")[2]))
    if match := _RATIO.fullmatch(text):
        return _fraction("", "0", match[1], match[2])
    if match := _FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        numerator, denominator = (parts[0] or parts[2]), (parts[1] or parts[3])
        if whole and not 0 < int(numerator) < int(denominator):
            return None  # a product, or a mistake; not a mixed number
        return _fraction(sign, whole or "0", numerator, denominator)
    if match := _MIXED.fullmatch(text):
        sign, whole, numerator, denominator = match.groups()
        if not 0 < int(numerator) < int(denominator):
            return None
        return _fraction(sign, whole, numerator, denominator)
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match[2] or match[3] or match[4])
        decimals = max(0, len(match[1].partition(".")[2]) - exponent)
        return Number(Fraction(match[1]) * Fraction(10) ** exponent, decimals)
    return None


def _fraction(sign: str, whole: str, numerator: str, denominator: str) -> Number | None:
    if int(denominator) == 0:
        return None
    value = int(whole) + Fraction(int(numerator), int(denominator))
    return Number(-value if sign == "-" else value)


def same_number(a: Number, b: Number) -> bool:
    """Whether two numbers as written mean the same number.

    Integers and fractions are exact. A decimal stands for another number when they agree to one
    unit of its last place (of the coarser one's, if both are decimals) and to one part in 10^6, so
    0.333333 is 1/3, 0.33 is not, and 1e-7 is not 2e-7.

    >>> third = Number(Fraction(1, 3))
    >>> [same_number(third, parse_number(text)) for text in ("0.333333", "0.33", "2/6")]
    [True, False, True]
    """
    if a.value == b.value:
        return True
    decimals = [n.decimals for n in (a, b) if n.decimals]
    if not decimals:
        return False
    gap = abs(a.value - b.value)
    largest = max(abs(a.value), abs(b.value))
    return gap * 10 ** min(decimals) <= 1 and gap * 1_000_000 <= largest
