"""Units at the end of an answer: ``12 cm`` is 0.12 m and not 12 m."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mmr1.rewards.reading.stance import is_qualifier
from mmr1.rewards.reading.vocabulary import VOCABULARY, pairs

# Not by pint: docs/decisions.md says why.
_SYMBOLS: dict[str, tuple[str, tuple[Fraction, ...]]] = {
    symbol: (dimension, tuple(map(Fraction, numbers)))
    for dimension, units in VOCABULARY["units"].items()
    for symbol, *numbers in (unit.split() for unit in units.split(","))
}
_PREFIXES = {sign: Fraction(factor) for sign, factor in pairs("prefixes").items()}
_PREFIXED = set(VOCABULARY["prefixed"].split())
_PREFIX_WORDS = pairs("prefix_words")
_WORDS, _CHINESE = pairs("unit_words"), pairs("chinese_units")
_MONEY = {"dollar": "$", "euro": "€", "yen": "¥", "yuan": "¥", "rmb": "¥", "pound sterling": "£"}
_KNOWN = {"%", "°", "thousand", *"$€£¥", *VOCABULARY["units"]}
_CUBIC = {"length3": ("volume", Fraction(1000))}  # 1 m^3 is 1000 l

_UNIT_WORD = r"°?[A-Za-zµμΩ€£¥]+"
_UNIT = rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?{_UNIT_WORD}(?:\s*\^\s*\{{?-?\d\}}?)?"
_TAIL = re.compile(
    rf"(?s)^(?P<core>.*?(?:[\d)}}\]]|\S(?=\s)))(?P<gap>\s*)(?P<unit>{_UNIT}(?:\s*(?:/|\bper\b|·)\s*{_UNIT})?)\.?$"
)
_LEADING = re.compile(
    rf"\s*\\?(?:(?P<sign>%|°(?!\s?[CF]\b))|(?P<unit>{_UNIT}(?:\s*(?:/|\bper\b|·)\s*{_UNIT})?)"
    r"(?![\w^(])(?=(?P<next>\s+\w)?))"
)
# Letters that end an expression and are not units unless they stand apart or are in \text{}.
_NOT_UNITS = {"pi", "e", "i", "or", "and", "to", "sqrt"}
_TEMPERATURE = re.compile(r"\s*°\s*([CF])(?![A-Za-z])")
_MICRO = re.compile(r"(?<=[\d\s}])\\mu\s*(?=(?:[msgAVFLlCWJNT]|Pa|Hz|mol)(?![A-Za-z]))")
_OHM = re.compile(r"(?<=[\d\s}kMmGμ])\s*\\Omega(?![A-Za-z])")
_TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


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
        return self.dimension.isalpha() and self.dimension not in _KNOWN


PERCENT, DEGREE = Unit("%"), Unit("°")
THOUSAND = Unit("thousand", Fraction(1000))  # 2K; 2 K are kelvin


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
    for name, symbol in _CHINESE.items() if not text.isascii() else ():
        if text.endswith(name):
            text = f"{text[: -len(name)].rstrip()} {symbol}"
            break
    if "\\Omega" in text or "\\mu" in text:
        text = _OHM.sub("Ω", _MICRO.sub("μ", text))
    if "°" in text:
        text = _TEMPERATURE.sub(r"°\1", text)
    for mark, sign_unit in (("%", PERCENT), ("°", DEGREE)):
        if text.endswith(mark) and len(text) > len(mark):
            if sign_unit == DEGREE and _TRIGONOMETRY.search(text):
                return text, None  # an argument, not the unit of the whole
            return text[: -len(mark)].rstrip().removesuffix("\\"), sign_unit
    for sign in "$€£¥":
        if text.startswith(sign) and len(text) > 1:
            return text[1:].lstrip(), Unit(sign)
    match = _TAIL.match(text[-80:]) if len(text) < 200 else None
    if match is None:
        return text, None
    name, gap = match["unit"], match["gap"]
    if (
        name.lower() in _NOT_UNITS
        or is_qualifier(name)
        or (len(name) == 1 and name.isascii() and not gap and not bare_letters)
    ):
        return text, None
    unit = THOUSAND if name == "K" and not gap else _parse(name)
    unknown = unit is not None and unit.dimension == _singular(name.lower())
    if unit is None or (unknown and not (gap and _counts(match["core"], name))):
        return text, None  # unknown letters, and no number before them: variables
    return text[: -len(match[0])] + match["core"], unit


def leading_unit(text: str) -> Unit | None:
    """The known unit that a text begins with, as behind the number of a sentence, or None.

    >>> leading_unit(" km long").factor, leading_unit(" in the box"), leading_unit(" cars")
    (Fraction(1000, 1), None, None)
    """
    match = _LEADING.match(_TEMPERATURE.sub(r" °\1", text))
    if match is None:
        return None
    if match["sign"]:
        return PERCENT if match["sign"] == "%" else DEGREE
    unit = THOUSAND if match["unit"] == "K" and text[0] == "K" else _parse(match["unit"])
    if unit is None or (match["unit"] == "in" and match["next"]):
        return None
    return None if unit.dimension == _singular(match["unit"].lower()) != "unit" else unit


def _counts(core: str, word: str) -> bool:
    """True if an unknown word behind an expression is the counted thing; products have no words."""
    return core[-1].isdigit() or (len(word) >= 4 and core[-1] == "}" and "sqrt" in core)


@lru_cache(4096)
def _parse(name: str) -> Unit | None:
    top, *bottom = re.split(r"\s*/\s*|\s+per\s+", name)
    upper = _single(top)
    if not bottom:
        return upper
    lower = _single(bottom[0])
    if upper is None or lower is None:
        return None
    return Unit(f"{upper.dimension}/{lower.dimension}", upper.factor / lower.factor)


def _single(name: str) -> Unit | None:
    match = re.fullmatch(
        rf"(?:(square|sq\.?|cubic|cu\.?)\s+)?({_UNIT_WORD})(?:\s*\^\s*\{{?(\d)\}}?)?", name.strip()
    )
    if match is None:
        return None
    prefix, word, power = match[1], match[2], match[3]
    exponent = int(power) if power else 1
    if prefix:
        exponent = 2 if prefix.startswith("sq") else 3
    unit = _listed(word)
    if unit is None:
        return Unit(_singular(word.lower())) if len(word) > 1 and exponent == 1 else None
    if exponent == 1:
        return unit
    dimension, factor = f"{unit.dimension}{exponent}", unit.factor**exponent
    if dimension in _CUBIC:
        dimension, scale = _CUBIC[dimension]
        factor *= scale
    return Unit(dimension, factor)


def _listed(word: str) -> Unit | None:
    lower = word.lower()
    if lower in ("degree", "degrees", "deg"):
        return DEGREE
    if lower in ("percent", "percentage", "pct"):
        return PERCENT
    if _singular(lower) in _MONEY:
        return Unit(_MONEY[_singular(lower)])
    symbol = _symbol(word.replace("µ", "μ"))
    if symbol in _SYMBOLS:
        dimension, numbers = _SYMBOLS[symbol]
        return Unit(dimension, *numbers)
    if symbol[:1] not in _PREFIXES or symbol[1:] not in _PREFIXED:
        return None
    dimension, numbers = _SYMBOLS[symbol[1:]]
    return Unit(dimension, numbers[0] * _PREFIXES[symbol[0]])


def _symbol(word: str) -> str:
    """The symbol of a unit's name, with that of its prefix; of other words the word itself."""
    if word in _SYMBOLS:
        return word
    names = {name.lower() for name in (word, _singular(word))}
    for name in names & _WORDS.keys():
        return _WORDS[name]
    for prefix, sign in _PREFIX_WORDS.items():  # of megohm the a is left out
        for start in (prefix, prefix[:-1]):
            for name in (name.removeprefix(start) for name in names if name.startswith(start)):
                if _WORDS.get(name) in _PREFIXED:
                    return sign + _WORDS[name]
    return word


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
