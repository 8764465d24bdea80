"""Numbers in words, as digits: ``forty-five`` is 45, ``1.25 million`` 1250000, ``十二`` 12."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from math import prod
from unicodedata import numeric

from mmr1.rewards.reading.vocabulary import pairs

# Not by word2number or num2words: docs/architecture.md says why.
_SMALL, _FACTORS, _PARTS = (
    {word: int(number) for word, number in pairs(name).items()}
    for name in ("small_numbers", "factors", "parts")
)
_DIGITS = "|".join(word for word, number in _SMALL.items() if 0 < number < 10)
_SCALES = "thousand|million|billion|trillion"
_END = r"(?![\w]|-\w)"
_UP_TO_99 = (
    rf"(?:(?:{'|'.join(word for word in _SMALL if word.endswith('ty'))})(?:[\s-](?:{_DIGITS}))?"
    rf"|{'|'.join(sorted(_SMALL, key=len, reverse=True))})"
)
_TO_99 = _UP_TO_99 + _END
_TO_999 = rf"(?:(?:an?\s|{_TO_99}[\s-])hundred{_END}(?:\s(?:and\s)?{_TO_99})?|{_TO_99})"
_SCALED = rf"(?:{_TO_999}[\s-]|an?\s)(?:{_SCALES}){_END}"
_CARDINAL = rf"(?:{_SCALED}(?:,?\s{_SCALED})*(?:,?\s(?:and\s)?{_TO_999})?|{_TO_999})"
_LITERAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_FACTOR = rf"(?:[\s-]+|(?<=\d))(?:{'|'.join(_FACTORS)})s?{_END}"
_PART = rf"(?:half|(?:\d+|an?|{_UP_TO_99})[\s-](?:{'|'.join(_PARTS)})s?){_END}"
_SIGN = r"(?:minus|negative)\s+|-\s?(?=[\d.])"
_TOKEN = re.compile(r"[a-z]{3,}")
_AROUND = {*_SMALL, *_FACTORS, "minus", "negative", "half", "halve"}
_AROUND |= {f"{word}s" for word in _AROUND}
_ANY = _AROUND | {*_PARTS, *(f"{word}s" for word in _PARTS)}
# Behind one of these a "minus" is a difference, not a sign.
_OPERAND = re.compile(r"(?:[\d)}\]]|(?<![A-Za-z])[A-Za-z])\s*$")

_NUMERAL = r"[零〇一二两三四五六七八九十百千万亿]+"
# A numeral inside a word is none: 三角形 is a triangle.
_CHINESE = re.compile(
    rf"(?:(?<=^)|(?<=[是为有共约:=\s]))(?P<sign>负)?(?:(?P<bottom>百|{_NUMERAL})分之"
    rf"(?P<top>{_NUMERAL}|{_LITERAL})|(?P<literal>{_LITERAL})"
    r"(?P<scale>[十百千万亿]+)(?!(?<=千)[克米瓦帕焦伏卡])"  # 10千克 are 10 kg
    rf"|(?P<numeral>{_NUMERAL})(?:点(?P<places>[零〇一二三四五六七八九]+))?)"
    r"(?=\s*(?:$|[,.。$%°]|[个只本张人块颗支辆位名种次条件座棵朵把岁元度米厘毫千公克平立秒分小]))"
)


@cache
def _number() -> re.Pattern[str]:
    """The pattern of numbers in words, compiled on first use as that takes long."""
    return re.compile(
        rf"(?i)(?<![\w.\\-])(?P<sign>{_SIGN})?(?:(?P<whole>{_TO_999})\spoint"
        rf"(?P<places>(?:\s(?:zero|{_DIGITS}){_END})+)|(?P<part>{_PART}(?!\s+(?:of|as)\b))"
        rf"|(?:(?P<cardinal>{_CARDINAL}(?!{_FACTOR})|(?:{_LITERAL}|an?|{_UP_TO_99})(?:{_FACTOR})+)"
        rf"|(?P<literal>{_LITERAL}))(?:\s+and\s+(?P<rest>{_PART})(?P<scale>{_FACTOR})?)?)"
    )


def has_number_word(text: str) -> bool:
    """True if a text has a word for a number, or for a share or multiple of one."""
    return not _AROUND.isdisjoint(_TOKEN.findall(text.lower()))


def with_digits(text: str) -> str:
    """The text with its numbers in words, and those that a word scales, as digits.

    >>> with_digits("forty-five degrees"), with_digits("minus 1.25 million")
    ('45 degrees', '-1250000')
    >>> with_digits("five and a half"), with_digits("三分之二")
    ('11/2', '2/3')
    """
    if not text.isascii():
        text = _CHINESE.sub(_read_chinese, text)
    if _ANY.isdisjoint(_TOKEN.findall(text.lower())):
        return text
    return _number().sub(_read, text)


def _read(match: re.Match[str]) -> str:
    literal, rest = match["literal"], match["rest"]
    if literal and not rest:
        worded = (match["sign"] or "-")[0] != "-"
        return _minus(match) + literal if worded else match[0]
    value = _value(match["whole"] or match["part"] or match["cardinal"] or literal)
    if value is None:
        return match[0]
    if rest:
        value = (value + (_value(rest) or 0)) * (_value(f"1 {match['scale'] or ''}") or 1)
    places = "".join(f"{_SMALL[word]}" for word in (match["places"] or "").lower().split())
    return f"{_minus(match)}{value}{places and '.'}{places}"


def _minus(match: re.Match[str]) -> str:
    if not match["sign"]:
        return ""
    return " - " if _OPERAND.search(match.string[: match.start()]) else "-"


def _value(text: str) -> Fraction | None:
    """The value of words; None for falling scales, as in "two thousand three million"."""
    total, current, last = Fraction(0), Fraction(text[:4].lower() == "half"), 10**15
    for word in re.findall(r"[\d.,]*\d|[a-z]+", text.lower()):
        name = word.removesuffix("s")
        factor = _FACTORS.get(name, 1)
        if word[-1].isdigit():
            current = Fraction(word.replace(",", ""))
        elif word in _SMALL:
            current += _SMALL[word]
        elif name in _PARTS:
            current /= _PARTS[name]
        elif word in ("a", "an"):
            current = Fraction(1)
        elif not current:
            total *= factor
        elif factor < 1000:
            current *= factor
        elif factor >= last:
            return None
        else:
            total, current, last = total + current * factor, Fraction(0), factor
    return total + current


def _read_chinese(match: re.Match[str]) -> str:
    top, places = match["top"], match["places"]
    if match["bottom"]:
        value = top if top[-1].isascii() else str(_chinese(top))
        value += "%" if match["bottom"] == "百" else f"/{_chinese(match['bottom'])}"
    elif match["literal"]:
        scales = (Fraction(numeric(unit)) for unit in match["scale"])
        value = str(prod(scales, start=Fraction(match["literal"].replace(",", ""))))
    else:
        value = str(_chinese(match["numeral"]))
        value += "." + "".join(f"{numeric(c):.0f}" for c in places) if places else ""
    return f"{'-' if match['sign'] else ''}{value}"


def _chinese(numeral: str) -> int:
    values = [int(numeric(c)) for c in numeral.replace("两", "二")]
    if max(values) < 10:  # 二〇二四, digit by digit
        return int("".join(map(str, values)))
    total = section = digit = 0
    below = 1  # the place of a digit that no unit follows: 一百五 is 150, 一百零五 is 105
    for value in values:
        if value < 10:
            digit, below = value, below if value else 1
        elif value < 10_000:
            section, digit, below = section + (digit or 1) * value, 0, value // 10
        else:
            total, section, digit, below = (total + section + digit) * value, 0, 0, value // 10
    return total + section + digit * below
