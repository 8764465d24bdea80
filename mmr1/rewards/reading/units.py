"""Units at the end of an answer: ``12 cm`` is 0.12 m and not 12 m."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mmr1.rewards.reading.stance import qualifies

# Not by pint: docs/decisions.md says why.
# A line for each dimension: symbols, which are case-sensitive, each with its number of base units.
_DIMENSIONS = """
length: mm 1/1000, cm 1/100, dm 1/10, m 1, km 1000, in 254/10000, ft 3048/10000, yd 9144/10000,\
        mi 1609344/1000, nmi 1852
mass: mg 1/1000, g 1, kg 1000, lb 45359237/100000, lbs 45359237/100000, oz 45359237/1600000
time: ms 1/1000, s 1, sec 1, min 60, h 3600, hr 3600, hrs 3600
volume: ml 1/1000, mL 1/1000, l 1, L 1, cc 1/1000, gal 3785411784/1000000000
length2: ha 10000
force: N 1, kN 1000
energy: J 1, kJ 1000
power: W 1, mW 1/1000, kW 1000, MW 1000000
voltage: V 1, mV 1/1000, kV 1000
current: A 1, mA 1/1000
frequency: Hz 1, kHz 1000, MHz 1000000
charge: C 1
flux density: T 1
amount: mol 1
electronvolt: eV 1
unit: unit 1
pressure: Pa 1, mPa 1/1000, kPa 1000, MPa 1000000
length/time: mph 1609344/3600000, kmh 1000/3600, kph 1000/3600
Celsius: °C 1
Fahrenheit: °F 1
"""
_SYMBOLS: dict[str, tuple[str, Fraction]] = {
    symbol: (dimension, Fraction(factor))
    for dimension, _, units in (line.partition(":") for line in _DIMENSIONS.strip().splitlines())
    for symbol, factor in (unit.split() for unit in units.split(","))
}
# Words in the singular, or less their final s; case does not count.
_WORDS_PAIRS = (
    "millimeter=mm millimetre=mm centimeter=cm centimetre=cm decimeter=dm meter=m metre=m "
    "kilometer=km kilometre=km inch=in inche=in foot=ft feet=ft yard=yd mile=mi milligram=mg "
    "gram=g kilogram=kg pound=lb ounce=oz millisecond=ms second=s minute=min hour=h "
    "milliliter=ml millilitre=ml liter=l litre=l gallon=gal hectare=ha newton=N joule=J watt=W "
    "unit=unit volt=V celsius=°C fahrenheit=°F"
)
_WORDS = dict(pair.split("=") for pair in _WORDS_PAIRS.split())
_MONEY = {"dollar": "$", "euro": "€", "yen": "¥", "yuan": "¥", "rmb": "¥", "pound sterling": "£"}
_CHINESE_PAIRS = (
    "平方厘米=cm^2 平方米=m^2 立方厘米=cm^3 立方米=m^3 毫米=mm 厘米=cm 千米=km 公里=km "
    "海里=nmi 米=m 小时=h 分钟=min 毫秒=ms 秒=s 千克=kg 公斤=kg 克=g 吨=tons "
    "毫升=ml 升=l 牛=N 元=yuan 度=degrees 年=years 岁=years 天=days 人=people "
    "个=unit 只=unit 本=unit 次=unit"
)
_CHINESE = dict(pair.split("=") for pair in _CHINESE_PAIRS.split())
_KNOWN = {"%", "°", *"$€£¥", *(dimension for dimension, _ in _SYMBOLS.values())}
_CUBIC = {"length3": ("volume", Fraction(1000))}  # 1 m^3 is 1000 l

_UNIT_WORD = r"°?[A-Za-zµ€£¥]+"
_UNIT = rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?{_UNIT_WORD}(?:\s*\^\s*\{{?-?\d\}}?)?"
_TAIL = re.compile(
    rf"^(?P<core>.*?(?:[\d)}}\]]|\S(?=\s)))(?P<gap>\s*)(?P<unit>{_UNIT}(?:\s*(?:/|\bper\b|·)\s*{_UNIT})?)\.?$",
    re.DOTALL,
)
_LEADING = re.compile(
    rf"\s*\\?(?:(?P<sign>[%°])|(?P<unit>{_UNIT}(?:\s*(?:/|\bper\b|·)\s*{_UNIT})?)"
    r"(?![\w^(])(?=(?P<next>\s+\w)?))"
)
# Letters that end an expression and are not units unless they stand apart or are in \text{}.
_NOT_UNITS = {"pi", "e", "i", "or", "and", "to", "sqrt"}
_TEMPERATURE = re.compile(r"\s*°\s*([CF])(?![A-Za-z])")
_TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit; ``factor`` base units of ``dimension``, or an unknown word with factor 1."""

    dimension: str
    factor: Fraction = Fraction(1)

    @property
    def is_unknown(self) -> bool:
        """True for a word that is no unit: the thing that is counted."""
        return self.dimension.isalpha() and self.dimension not in _KNOWN


PERCENT, DEGREE = Unit("%"), Unit("°")


def split_unit(text: str, *, bare_letters: bool) -> tuple[str, Unit | None]:
    """An answer's expression and its unit.

    Args:
        text: A normalised answer; ``\\text{}`` is unwrapped with a space before it.
        bare_letters: Take a single letter right behind a number (``5m``) for a unit; where the
            other side has letters too it is rather a variable.

    >>> split_unit("12 cm", bare_letters=False)
    ('12', Unit(dimension='length', factor=Fraction(1, 100)))
    >>> split_unit("2x", bare_letters=True), split_unit("5m", bare_letters=False)
    (('2x', None), ('5m', None))
    """
    for name, symbol in _CHINESE.items() if not text.isascii() else ():
        if text.endswith(name):
            text = f"{text[: -len(name)].rstrip()} {symbol}"
            break
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
        or qualifies(name)
        or (len(name) == 1 and not gap and not bare_letters)
    ):
        return text, None
    unit = _parse(name)
    unknown = unit is not None and unit.dimension == _singular(name.lower())
    if unit is None or (unknown and not (gap and _counts(match["core"], name))):
        return text, None  # unknown letters, and no number before them: variables
    return text[: -len(match[0])] + match["core"], unit


def leading_unit(text: str) -> Unit | None:
    """The known unit that a text begins with, as behind the number of a sentence, or None.

    >>> leading_unit(" km long"), leading_unit(" in the box"), leading_unit(" cars")
    (Unit(dimension='length', factor=Fraction(1000, 1)), None, None)
    """
    match = _LEADING.match(text)
    if match is None:
        return None
    if match["sign"]:
        return PERCENT if match["sign"] == "%" else DEGREE
    unit = _parse(match["unit"])
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
    symbol = word if word in _SYMBOLS else _WORDS.get(lower) or _WORDS.get(_singular(lower))
    if symbol is None:
        return None
    return Unit(*_SYMBOLS[symbol])


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
