"""Numbers in words, as digits: ``forty-five`` is 45, ``1.25 million`` 1250000, ``十二`` 12."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache

# Not by word2number or num2words: docs/decisions.md says why.
_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = ["ten", "eleven", "twelve"] + [
    f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {
    **{word: value for value, word in enumerate(_ONES + _TEENS)},
    **{word: 10 * value for value, word in enumerate(_TENS, 2)},
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_FACTORS = {"dozen": 12, "hundred": 100, "lakh": 10**5, "crore": 10**7, **_SCALES}
_PARTS = {
    **dict.fromkeys(("half", "halve"), 2),
    **dict.fromkeys(("quarter", "fourth"), 4),
    **{"third": 3, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10},
    **{"hundredth": 100, "thousandth": 1000},
}

_END = r"(?![\w]|-\w)"
_UP_TO_99 = (
    rf"(?:(?:{'|'.join(_TENS)})(?:[\s-](?:{'|'.join(_ONES[1:])}))?"
    rf"|{'|'.join(sorted(_ONES + _TEENS, key=len, reverse=True))})"
)
_TO_99 = _UP_TO_99 + _END
_TO_999 = rf"(?:(?:an?\s|{_TO_99}[\s-])hundred{_END}(?:\s(?:and\s)?{_TO_99})?|{_TO_99})"
_SCALED = rf"(?:{_TO_999}[\s-]|an?\s)(?:{'|'.join(_SCALES)}){_END}"
_CARDINAL = rf"(?:{_SCALED}(?:,?\s{_SCALED})*(?:,?\s(?:and\s)?{_TO_999})?|{_TO_999})"
_LITERAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_FACTOR = rf"[\s-]*(?:{'|'.join(_FACTORS)})s?{_END}"
_MULTIPLE = rf"(?:{_LITERAL}|an?|{_UP_TO_99})(?:{_FACTOR})+"
_PART = rf"(?:half|(?:\d+|an?|{_UP_TO_99})[\s-](?:{'|'.join(_PARTS)})s?){_END}"
_POINT = rf"{_TO_999}\spoint(?:\s(?:{'|'.join(_ONES)}){_END})+"
_SIGN = r"(?:minus|negative)\s+|-\s?(?=[\d.])"
_TOKEN = re.compile(r"[a-z]{3,}")
_AROUND = {*_SMALL, *_FACTORS, "minus", "negative", "half", "halve"}
_AROUND |= {f"{word}s" for word in _AROUND}
_ANY = _AROUND | {*_PARTS, *(f"{word}s" for word in _PARTS)}
# Behind one of these a "minus" is a difference, not a sign.
_OPERAND = re.compile(r"(?:[\d)}\]]|(?<![A-Za-z])[A-Za-z])\s*$")

_CHINESE_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_SCALES = {"万": 10**4, "亿": 10**8}
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
        rf"(?i)(?<![\w.\\-])(?P<sign>{_SIGN})?(?:(?P<point>{_POINT})"
        rf"|(?P<part>{_PART}(?!\s+(?:of|as)\b))"
        rf"|(?P<whole>(?P<cardinal>{_CARDINAL})(?!{_FACTOR})|(?P<multiple>{_MULTIPLE})"
        rf"|(?P<literal>{_LITERAL}))"
        rf"(?:\s+and\s+(?P<rest>{_PART})(?P<scale>{_FACTOR})?)?)"
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
    literal = match["literal"]
    if literal and match["sign"] in (None, "-", "- ") and not match["rest"]:
        return match[0]
    if match["part"]:
        value: Fraction | None = _part(match["part"])
    elif match["point"]:
        whole, _, places = match["point"].lower().partition(" point ")
        value = _cardinal(whole)
        written = "".join(str(_SMALL[word]) for word in places.split())
        return match[0] if value is None else f"{_minus(match)}{value}.{written}"
    elif match["multiple"]:
        value = _multiple(match["multiple"])
    elif literal:
        value = Fraction(literal.replace(",", ""))
        if not match["rest"]:
            return f"{_minus(match)}{literal}"
    else:
        value = _cardinal(match["cardinal"])
    if value is not None and match["rest"]:
        value = value + _part(match["rest"])
        if match["scale"]:
            value *= _FACTORS[_words(match["scale"])[0].removesuffix("s")]
    return match[0] if value is None else f"{_minus(match)}{value}"


def _minus(match: re.Match[str]) -> str:
    if not match["sign"]:
        return ""
    return " - " if _OPERAND.search(match.string[: match.start()]) else "-"


def _words(text: str) -> list[str]:
    return re.sub(r"[\s,-]+", " ", text.lower()).split()


def _cardinal(text: str) -> Fraction | None:
    """The value of cardinal words; None for falling scales, as in "two thousand three million"."""
    total, current, last = 0, 0, 10**15
    for word in _words(text):
        if word in ("a", "an"):
            current = 1
        elif word in _SMALL:
            current += _SMALL[word]
        elif word == "hundred":
            current *= 100
        elif word in _SCALES:
            if _SCALES[word] >= last:
                return None
            last = _SCALES[word]
            total, current = total + current * last, 0
    return Fraction(total + current)


def _multiple(text: str) -> Fraction:
    words = re.findall(r"[\d.,]*\d|[a-z]+", text.lower())
    value = Fraction(0)
    for word in words:
        if word[-1].isdigit():
            value = Fraction(word.replace(",", ""))
        elif word in ("a", "an"):
            value = Fraction(1)
        elif word in _SMALL:
            value += _SMALL[word]
        else:
            value *= _FACTORS[word.removesuffix("s")]
    return value


def _part(text: str) -> Fraction:
    *count, part = _words(text)
    top = 0
    for word in count:
        top += int(word) if word.isdigit() else _SMALL.get(word, 1)
    return Fraction(top if count else 1, _PARTS[part.removesuffix("s")])


def _read_chinese(match: re.Match[str]) -> str:
    minus = "-" if match["sign"] else ""
    if match["bottom"]:
        top = match["top"]
        value = top if top[-1].isascii() else str(_chinese(top))
        if match["bottom"] == "百":
            return f"{minus}{value}%"
        return f"{minus}{value}/{_chinese(match['bottom'])}"
    if match["literal"]:
        scaled = Fraction(match["literal"].replace(",", ""))
        for unit in match["scale"]:
            scaled *= {**_CHINESE_UNITS, **_CHINESE_SCALES}[unit]
        return f"{minus}{scaled}"
    places = "".join(str(_CHINESE_DIGITS[c]) for c in match["places"] or "")
    return f"{minus}{_chinese(match['numeral'])}{'.' if places else ''}{places}"


def _chinese(numeral: str) -> int:
    if all(c in _CHINESE_DIGITS for c in numeral):  # 二〇二四, digit by digit
        return int("".join(str(_CHINESE_DIGITS[c]) for c in numeral))
    total = section = digit = 0
    below = 1  # the place of a digit that no unit follows: 一百五 is 150, 一百零五 is 105
    for c in numeral:
        if c in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[c]
            below = below if digit else 1
        elif c in _CHINESE_UNITS:
            section, digit = section + (digit or 1) * _CHINESE_UNITS[c], 0
            below = _CHINESE_UNITS[c] // 10
        else:
            total, section, digit = (total + section + digit) * _CHINESE_SCALES[c], 0, 0
            below = _CHINESE_SCALES[c] // 10
    return total + section + digit * below
