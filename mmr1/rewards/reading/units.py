"""Units of an answer: ``12 cm`` is 0.12 m and not 12 m."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mmr1.rewards.reading.stance import is_qualifier
from mmr1.rewards.reading.vocabulary import VOCABULARY, pairs


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit; ``factor`` base units of ``dimension``, or an unknown word with factor 1.

    Of a temperature, ``offset`` is added before the factor counts.
    """

    dimension: str
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    @property
    def is_unknown(self) -> bool:
        """True for a word that is no unit: the thing that is counted."""
        return self.dimension.isalpha() and self.dimension not in VOCABULARY["units"]


PERCENT, DEGREE = Unit("%"), Unit("°")
THOUSAND = Unit("1000", Fraction(1000))  # 2K; 2 K are kelvin

# Not by pint: docs/architecture.md says why.
_SYMBOLS = {
    symbol: Unit(dimension, *map(Fraction, numbers))
    for dimension, units in VOCABULARY["units"].items()
    for symbol, *numbers in (unit.split() for unit in units.split(","))
}
_PREFIXED = VOCABULARY["prefixed"].split()
_SYMBOLS = {
    sign + symbol: Unit(_SYMBOLS[symbol].dimension, _SYMBOLS[symbol].factor * Fraction(factor))
    for sign, factor in pairs("prefixes").items()
    for symbol in _PREFIXED
} | _SYMBOLS
_NAMES = {name: _SYMBOLS[symbol] for name, symbol in pairs("unit_words").items()}
_NAMES |= {
    start + name: _SYMBOLS[sign + symbol]  # of megohm the a is left out
    for name, symbol in pairs("unit_words").items()
    for prefix, sign in pairs("prefix_words").items()
    for start in (prefix, prefix[:-1])
    if symbol in _PREFIXED
}
_CHINESE = pairs("chinese_units")

UNIT_WORD = (
    rf"(?:°\s*[CF](?![A-Za-z])|[kMmGμ]?\s*\\Omega(?![a-z])|\\mu\s*(?:[A-Za-z]{{1,3}})(?![A-Za-z])"
    rf"|[A-Za-zµμΩ€£¥]+|{'|'.join(_CHINESE)})"
)
_UNIT = rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?{UNIT_WORD}(?:\s*\^\s*\{{?-?\d\}}?)?"
_UNITS = rf"{_UNIT}(?:\s*(?:/|\bper\b|·)\s*{_UNIT})?"
_TAIL = re.compile(rf"(?s)^(?P<core>.*?(?:[\d)}}\]]|\S(?=\s)))(?P<gap>\s*)(?P<unit>{_UNITS})\.?$")
_LEADING = re.compile(rf"\s*\\?(?P<unit>[%°](?!\s?[CF]\b)|{_UNITS}(?![\w^(]))(?P<next>\s+\w)?")
_SINGLE = re.compile(rf"(?:(sq|cu)\S*\s+)?({UNIT_WORD}|[%°])(?:\s*\^\s*\{{?(\d)\}}?)?")
_TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


def split_unit(text: str, *, bare_letters: bool) -> tuple[str, Unit | None]:
    """An answer's expression and its unit.

    Args:
        text: A normalised answer; ``\\text{}`` is unwrapped with a space before it.
        bare_letters: Take a single letter right behind a number (``5m``) for a unit; where the
            other side has letters too it is rather a variable.

    >>> split_unit("12%", bare_letters=False)[1] == PERCENT
    True
    >>> split_unit("2x", bare_letters=True), split_unit("5m", bare_letters=False)
    (('2x', None), ('5m', None))
    """
    if len(text) > 1 and text[0] in "$€£¥":
        return text[1:].lstrip(), _SYMBOLS[text[0]]
    if len(text) > 1 and text[-1] in "%°":
        if text[-1] == "°" and _TRIGONOMETRY.search(text):
            return text, None  # an argument, not the unit of the whole
        return text[:-1].rstrip().removesuffix("\\"), _SYMBOLS[text[-1]]
    match = _TAIL.match(text[-80:]) if len(text) < 200 else None
    if match is None or is_qualifier(match["unit"]):
        return text, None
    core, gap, name = match.groups()
    unit = THOUSAND if name == "K" and not gap else parse_unit(name)
    apart = gap or not name.isascii()
    if unit is None or (len(name) == 1 and not apart and not bare_letters):
        return text, None
    counted = core[-1].isdigit() or (len(name) >= 4 and core[-1] == "}" and "sqrt" in core)
    if unit.is_unknown and not (apart and counted):
        return text, None  # unknown letters, and no number before them: variables
    return text[: -len(match[0])] + core, unit


def leading_unit(text: str) -> Unit | None:
    """The known unit that a text begins with, as behind the number of a sentence, or None.

    >>> leading_unit(" km long").factor, leading_unit(" in the box"), leading_unit(" cars")
    (Fraction(1000, 1), None, None)
    """
    match = _LEADING.match(text)
    if match is None or (match["unit"] == "in" and match["next"]):
        return None
    unit = THOUSAND if match["unit"] == "K" and text[0] == "K" else parse_unit(match["unit"])
    return None if unit is None or unit.is_unknown else unit


@lru_cache(4096)
def parse_unit(name: str) -> Unit | None:
    """The unit that a text names, with its power and what it is divided by, or None."""
    top, *bottom = map(_single, re.split(r"\s*/\s*|\s+per\s+", _CHINESE.get(name, name)))
    if not bottom or top is None or bottom[0] is None:
        return None if bottom else top
    return Unit(f"{top.dimension}/{bottom[0].dimension}", top.factor / bottom[0].factor)


def _single(name: str) -> Unit | None:
    match = _SINGLE.fullmatch(name.strip())
    if match is None:
        return None
    prefix, word, power = match.groups()
    exponent = int(power or {"sq": 2, "cu": 3}.get(prefix, 1))
    unit = unit_of(word)
    if unit is None:
        return Unit(_singular(word.lower())) if len(word) > 1 and exponent == 1 else None
    if exponent == 1:
        return unit
    if unit.dimension == "length" and exponent == 3:
        return Unit("volume", 1000 * unit.factor**3)
    return Unit(f"{unit.dimension}{exponent}", unit.factor**exponent)


def unit_of(word: str) -> Unit | None:
    """The unit with a symbol or a name, in the singular or the plural, or None."""
    word = "".join(re.sub(r"\\mu|µ", "μ", word).replace(r"\Omega", "Ω").split())
    names = word.lower(), _singular(word.lower())
    return _SYMBOLS.get(word) or _NAMES.get(names[0]) or _NAMES.get(names[1])


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
