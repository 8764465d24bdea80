"""Plain numbers, exact, and decimals that stand for another number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 60  # longer literals are left to the sandbox
FLOAT_DIGITS = 15  # significant decimal digits that a double always holds

_INTEGER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(rf"(?:{_INTEGER})?\.\d+|{_INTEGER}\.?")
_SCIENTIFIC = re.compile(
    r"([+-]?\d+(?:\.\d+)?)(?:[eE]([+-]?\d{1,3})"
    r"|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{([+-]?\d{1,3})\}|([+-]?\d{1,3})))"
)
_FRACTION = re.compile(
    r"([+-]?)\s*(\d*)\s*(?:(?<!\d)(\d+)\s*/\s*([+-]?\d+)"
    r"|\\frac\s*(?:\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}|(\d)(\d)))"
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written; two integers, because Fraction reduces and that takes time.

    Attributes:
        numerator: Any integer.
        denominator: A positive integer.
        decimals: Digits after the point; 0 for integers and fractions, which are exact.
    """

    numerator: int
    denominator: int = 1
    decimals: int = 0

    @property
    def value(self) -> Fraction:
        return Fraction(self.numerator, self.denominator)

    def times(self, factor: Fraction, plus: Fraction = Fraction(0)) -> Number:
        """The number in another unit, just as coarse."""
        value = self.value * factor + plus
        return Number(*value.as_integer_ratio(), self.decimals)


def parse_number(text: str) -> Number | None:
    """An integer, decimal, fraction, mixed or scientific number, or None.

    >>> parse_number("3 1/2"), parse_number("\\frac{1}{0}")
    (Number(numerator=7, denominator=2, decimals=0), None)
    >>> parse_number("1,234.5")
    Number(numerator=12345, denominator=10, decimals=1)
    """
    if len(text) > MAX_DIGITS:
        return None
    if _DECIMAL.fullmatch(text):
        whole, _, places = text.replace(",", "").partition(".")
        return Number(int(whole + places), 10 ** len(places), len(places))
    if match := _FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        top, bottom = (int(part) for part in parts if part)
        if bottom == 0 or (whole and not 0 < top < bottom):
            return None  # of digits in front a product, or a mistake; not a mixed number
        value = Fraction(top, bottom) + int(whole or 0)
        return Number(*(-value if sign == "-" else value).as_integer_ratio())
    if match := _SCIENTIFIC.fullmatch(text):
        exponent, places = int(match[2] or match[3] or match[4]), match[1].partition(".")[2]
        value = Fraction(match[1]) * Fraction(10) ** exponent
        return Number(*value.as_integer_ratio(), max(0, len(places) - exponent))
    return None


def same_number(a: Number, b: Number) -> bool:
    """True if two numbers as written mean the same number.

    Integers and fractions are exact. A decimal stands for another number when they agree to one
    unit of its last place (of the coarser one's, if both are decimals) and to one part in 10^6, so
    0.333333 is 1/3, 0.33 is not, and 1e-7 is not 2e-7. A decimal of 15 digits or more may be the
    printed form of a double, whose last places are rounding: four units of the double's precision
    are allowed.

    >>> [same_number(Number(1, 3), parse_number(text)) for text in ("0.333333", "0.33", "2/6")]
    [True, False, True]
    """
    left, right = a.numerator * b.denominator, b.numerator * a.denominator
    if left == right:
        return True
    decimals = [n.decimals for n in (a, b) if n.decimals]
    if not decimals:
        return False
    gap, magnitude = abs(left - right), max(abs(left), abs(right))
    shift, product = 10 ** min(decimals), a.denominator * b.denominator
    if gap * shift <= product:
        return gap * 1_000_000 <= magnitude
    if magnitude * shift < 10 ** (FLOAT_DIGITS - 1) * product or _are_integers(a, b):
        return False
    return gap << 50 <= magnitude


def _are_integers(a: Number, b: Number) -> bool:
    return a.numerator % a.denominator == 0 and b.numerator % b.denominator == 0
