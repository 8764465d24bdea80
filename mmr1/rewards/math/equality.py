"""Compare an answer with the gold answer: the cheap half, decided without a sandbox.

Most answers are plain numbers or spelled like the gold; those are settled here, exactly. What
needs algebra goes to ``mmr1.rewards.math.symbolic`` in the verifier pool.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from typing import Any

from mmr1.rewards.item import BadGoldError, Job, unread
from mmr1.rewards.reading.booleans import TRUTH, boolean_of
from mmr1.rewards.reading.characters import fold_case, unwrap
from mmr1.rewards.reading.choices import read_choice
from mmr1.rewards.reading.extract import extract_answer
from mmr1.rewards.reading.latex import normalise, without_labels
from mmr1.rewards.reading.numbers import parse_number, same_number
from mmr1.rewards.reading.quantities import (
    Quantity,
    read_quantity,
    same_quantity,
    whole_quantity,
)
from mmr1.rewards.reading.stance import MAX_ANSWER, Unread, conclusion, statement, statements
from mmr1.rewards.reading.times import is_ratio, read_clock, read_date
from mmr1.rewards.reading.units import DEGREE, PERCENT, Unit, split_unit
from mmr1.rewards.reading.vocabulary import any_of, words
from mmr1.rewards.reading.words import with_digits
from mmr1.types import Reward

_SMALL_INTEGER = re.compile(r"[+-]?\d{1,18}")
_PROSE = re.compile(r"[A-Za-z][A-Za-z'\-,;. ]*")
_SHORT_WORDS = {"no", "yes", "true", "none"}
_FUNCTIONS = re.compile(words("functions"))
_LETTER, _COMMAND = re.compile(r"[A-Za-z]"), re.compile(r"\\[A-Za-z]+")
_OPTIONS = "ABCDEFGHIJ"
_SAID_OF_WORDS = re.compile(r"[<>=%≠¬]|\\(?:ne|le|ge|lnot|neg)(?![a-z])|^\W*-")
# A run of letters that is not a command, index, function, or name that is given a value.
_WORDS = re.compile(r"[A-Za-z]{3,}|(?<![A-Za-z])(?:if|no|up|is|to|by|at|of)(?![A-Za-z])")
_NO_WORDS = re.compile(
    r"\\[A-Za-z]+|_\{[^{}]*\}|[A-Za-z]{2,}\s*(?==)|\{[A-Za-z]+\*?\}|(?<![A-Za-z])(?:(?:arc|a)?"
    rf"(?:sin|cos|tan|cot|sec|csc)h?|(?:{any_of('functions', 'operators')})(?![A-Za-z]))"
)
_VARIABLE = re.compile(r"(?<![A-Za-z\\_])(?![ei])[A-Za-z](?![A-Za-z(_'])")
_BARE_UNITS = tuple("mgNJWVAL")  # right behind a number, as in 10N, if the answer has no letter
_NAME = re.compile(r"[A-Za-z](?: ?[A-Za-z])+")
_ANGLE = re.compile(r"\\(?:measured)?angle\s*\{?([A-Za-z]{2,4})\}?")
_ROUNDED = re.compile(
    r"(?i)(?:[A-Za-z]?\s*\\(?:approx|simeq)(?![a-z])"
    r"|(?:about|approximately|approx\.?|around|roughly|circa|ca\.)(?=[\s$])|[~∼]|约为?|大约为?)\s*"
)
_ABOUT = re.compile(r"\\(?:approx|simeq)")
_TITLE = re.compile(r"[A-Z][a-z]+ [A-Z]")  # a name, such as Seven Samurai
_LETTERS = re.compile(r"\(?[A-J]\)?(?:(?:[\s,;]|and\b|&)*\(?[A-J]\)?)*")
_LETTER_LIST = re.compile(r"\(?[A-J]\)?(?:\s*(?:[,;&]|and\b)\s*\(?[A-J]\)?)+")
_OPERATOR = re.compile(r"[=+*/^\\]|[A-J]\(")
_MATHEMATICS = re.compile(r"\d|\\[a-z]|(?<![A-Za-z'’])[A-Za-z](?![A-Za-z'’])")
_ARTICLE = re.compile(r"^(?:an?|the) ")


def gold_text(answer: Any) -> str:
    """The gold answer as text, cleaned; tags and boxes around it are removed.

    Raises:
        BadGoldError: If the answer is empty, not finite, or neither text nor a number.
    """
    if not isinstance(answer, str | int | float):
        raise BadGoldError(f"the gold answer {answer!r:.80} is neither text nor a number")
    if isinstance(answer, float) and not isfinite(answer):
        raise BadGoldError(f"the gold answer is {answer}")
    text = str(answer)
    if "<" in text or "\\boxed" in text or not text.isascii():
        text = extract_answer(text, "whole") or ""
    if not text or text.isspace():
        raise BadGoldError("the gold answer is empty")
    return text


def decide(gold: str, prediction: str) -> float | Reward | Job:
    """The verdict on two texts, the job that will find it, or the status of an unread answer."""
    if gold == prediction:
        return 1.0
    if _SMALL_INTEGER.fullmatch(gold) and _SMALL_INTEGER.fullmatch(prediction):
        return float(int(gold) == int(prediction))
    if len(prediction) > MAX_ANSWER:
        return unread(f"a text of more than {MAX_ANSWER} characters")
    if len(gold) == len(prediction) == 1 and gold in _OPTIONS and prediction.upper() in _OPTIONS:
        return float(gold == prediction.upper())
    number = parse_number(prediction)
    if number and (gold_number := _gold_number(gold)):
        return float(same_number(gold_number, number))
    typed = _compare_types(unwrap(gold), unwrap(prediction))
    return _compare_texts(gold, prediction) if typed is None else typed


def _compare_types(gold: str, prediction: str) -> float | Reward | None:
    """The verdict on booleans, clock times and dates; None where the gold is another value."""
    if TRUTH.fullmatch(gold):
        truth = boolean_of(prediction)
        return unread("neither yes nor no") if truth is None else float(truth is boolean_of(gold))
    said = statement(prediction) or prediction
    date, given = read_date(gold), read_date(prediction) or read_date(said)
    if date or given:
        return float(date == given) if given else unread("no date")
    clock, time = read_clock(gold), read_clock(prediction) or read_clock(said)
    if clock and (time or (":" in gold and not is_ratio(gold))):
        return float(clock.same(time)) if time else unread("no time of day")
    return None


def _compare_texts(gold: str, prediction: str) -> float | Reward | Job:
    _, answer = conclusion(prediction, lambda part: _MATHEMATICS.search(part) is not None)
    gold, written = _normalised_gold(gold), normalise(prediction)
    prediction = written if answer == prediction else normalise(answer)
    if gold in (prediction, written):
        return 1.0
    if is_prose(gold) and _plain(gold) in map(_plain, (prediction, *statements(written))):
        return float(not _SAID_OF_WORDS.search(prediction))
    quantity = _quantity(gold)
    number = _plain_quantity(quantity)
    if number and (_words_of(answer) or whole_quantity(answer)):
        return _compare_sentence(number, answer)
    gold = quantity
    if not is_prose(gold):
        prediction = _quantity(statement(prediction) or prediction)
    if is_ratio(gold):
        prediction = re.sub(r"(?<=\d) to (?=\d)", ":", prediction)
    if "=" in gold or "=" in prediction:
        values = by_name(*without_labels(gold, prediction))
        if values is None:
            return 0.0
        gold, prediction = values
    worded = _compare_words(gold, prediction)
    return _decide_quantities(gold, prediction) if worded is None else worded


def _plain_quantity(text: str) -> Quantity | None:
    core, unit = split_unit(text, bare_letters=False)
    number = parse_number(core)
    return None if number is None else Quantity(number, unit)


def _compare_sentence(gold: Quantity, answer: str) -> float | Reward:
    """The verdict on a number and words around another."""
    reading = read_quantity(answer, none_is_zero=False)
    if isinstance(reading, Unread):
        return unread(reading.reason)
    quantity = reading.value
    if gold.unit and gold.unit.is_unknown:  # the counted thing, to be named where one is named
        whole = whole_quantity(answer)
        if gold.unit.dimension not in fold_case(answer) and not (whole and whole.unit is None):
            return 0.0
        quantity = Quantity(quantity.number)
    return float(same_quantity(gold, quantity))


# The golds of a group are one gold.
_normalised_gold = lru_cache(8192)(normalise)
_gold_number = lru_cache(8192)(parse_number)


def _quantity(text: str) -> str:
    """A number in words or rounded (``about 12``) as the plain quantity that it is."""
    if "\\" in text and not _ABOUT.search(text):
        return text
    rounded = _ROUNDED.match(text)
    plain = with_digits(text[rounded.end() :] if rounded else text)
    if not rounded and plain == text:
        return text
    quantity = _plain_quantity(plain)
    if quantity is None:
        return text
    unknown = quantity.unit is not None and quantity.unit.is_unknown
    return text if unknown and _TITLE.match(text) else plain


def is_prose(text: str) -> bool:
    """True for words rather than symbols: letters, with a word too long to be a product."""
    if not _PROSE.fullmatch(text) or _FUNCTIONS.search(text):
        return False
    parts = text.split()
    return text.lower() in _SHORT_WORDS or max(map(len, parts)) >= 4 or len(parts) > 2


def _compare_words(gold: str, prediction: str) -> float | None:
    """The text comparer for golds that are words or the letter of an option, else None."""
    if len(gold) == 1 and gold in _OPTIONS:
        letter = None if _OPERATOR.search(prediction) else read_choice(prediction, {})
        return float(letter.value == gold) if letter else None
    if _LETTER_LIST.fullmatch(gold):
        chosen = _LETTER.findall(prediction.replace("and", " "))
        listed = _LETTERS.fullmatch(prediction) is not None and len(set(chosen)) == len(chosen)
        return float(listed and set(chosen) == set(_LETTER.findall(gold.replace("and", " "))))
    angles = _ANGLE.fullmatch(gold), _ANGLE.fullmatch(prediction)
    if angles[0] and angles[1]:  # read from either side, an angle keeps its vertex in the middle
        return float(angles[1][1] in (angles[0][1], angles[0][1][::-1]))
    if _NAME.fullmatch(gold) and _NAME.fullmatch(prediction) and _are_names(gold, prediction):
        return 0.0
    if _is_word(gold) and _is_word(prediction) and gold.casefold() == prediction.casefold():
        return 1.0
    if not is_prose(gold) and any(c.isalnum() for c in gold):
        return None
    said = _SAID_OF_WORDS.search(prediction) and not _SAID_OF_WORDS.search(gold)
    return float(not said and _plain(gold) == _plain(prediction))


def _are_names(gold: str, prediction: str) -> bool:
    """True for the same letters in another order: ``ba`` is another point or word than ``ab``.

    Nothing is ever called by the letters of unknowns, so ``yx`` is the product ``xy``. Where there
    is a digit or an operator (``3ab``, ``a \\cdot b``), the letters are factors.
    """
    left, right = gold.replace(" ", "").lower(), prediction.replace(" ", "").lower()
    return left != right and sorted(left) == sorted(right) and not set(left) <= set("xyz")


def _is_word(text: str) -> bool:
    """True for ``cat``, ``Cat`` and ``CAT``, not for a product of symbols such as ``GMm``."""
    cased = text.islower() or text.istitle() or text.isupper()
    return len(text) > 2 and text.isalpha() and cased and any(c in "aeiouyAEIOUY" for c in text)


def _plain(text: str) -> str:
    if not any(c.isalnum() for c in text):
        return text
    plain = " ".join(re.sub(r"[^\w\s]", " ", text.casefold()).split())
    return _ARTICLE.sub("", plain)


def _decide_quantities(gold: str, prediction: str) -> float | Reward | Job:
    # 5m is five metres beside a number and a variable's multiple beside another expression.
    letters = [_LETTER.search(_COMMAND.sub("", text)) is not None for text in (gold, prediction)]
    bare = gold.endswith(_BARE_UNITS) and not letters[1]
    gold, gold_unit = split_unit(gold, bare_letters=bare)
    prediction, unit = split_unit(prediction, bare_letters=not letters[0] or bool(gold_unit))
    if unit and not gold_unit and letters[0]:
        gold, gold_unit = split_unit(gold, bare_letters=True)
    if gold == prediction and gold_unit == unit:
        return 1.0
    numbers = parse_number(gold), parse_number(prediction)
    if numbers[0] and _SPACED_THOUSANDS.fullmatch(prediction):
        numbers = numbers[0], parse_number(prediction.replace(" ", ""))
    if numbers[0] and numbers[1]:
        return float(same_quantity(Quantity(numbers[0], gold_unit), Quantity(numbers[1], unit)))
    if gold_unit and unit and gold_unit.dimension != unit.dimension:
        return 0.0
    if numbers[0] and "=" not in prediction and _VARIABLE.search(_NO_WORDS.sub(" ", prediction)):
        return unread(f"unknowns, and no number: {prediction:.60}")  # as 0a, which would be 0
    if gold_unit and unit and gold_unit.factor != unit.factor:
        gold, prediction = _scaled(gold, gold_unit), _scaled(prediction, unit)
    if gold == prediction and unit != PERCENT:
        return 1.0
    if _has_other_words(gold, prediction):
        prediction = ""  # no mathematics; the gold is still to be read
    if PERCENT in (gold_unit, unit) and gold_unit != unit:
        which = "gold" if gold_unit == PERCENT else "prediction"
        return Job("mmr1.rewards.math.symbolic:verify", (gold, prediction, which))
    if (gold_unit == DEGREE and r"\pi" in prediction) or (unit == DEGREE and r"\pi" in gold):
        gold, prediction = _in_radians(gold, gold_unit), _in_radians(prediction, unit)
    return Job("mmr1.rewards.math.symbolic:verify", (gold, prediction))


def _words_of(text: str) -> list[str]:
    return _WORDS.findall(_NO_WORDS.sub(" ", text))


def _has_other_words(gold: str, prediction: str) -> bool:
    """True for words that are not the gold's, whose letters the grammar would multiply.

    Times 0 they vanish, so "not 0" would be 0.
    """
    letters = set(_COMMAND.sub("", gold).lower())
    return any(not set(word.lower()) <= letters for word in _words_of(prediction))


def _scaled(text: str, unit: Unit) -> str:
    if unit.offset:
        text = rf"{text} + \frac{{{unit.offset.numerator}}}{{{unit.offset.denominator}}}"
    return rf"({text}) \cdot \frac{{{unit.factor.numerator}}}{{{unit.factor.denominator}}}"


def _in_radians(text: str, unit: Unit | None) -> str:
    return rf"({text}) \cdot \frac{{\pi}}{{180}}" if unit == DEGREE else text


_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_SEPARATOR = re.compile(r"\s*(?:[,;\n]|\\\\|\b(?:and|or)\b|或|且|和)\s*")
_ASSIGNMENT = re.compile(
    r"((?:\\(?:angle|alpha|beta|theta|lambda)\s*)?(?:[A-Za-z]{0,4})'*)(_\{?\w+\}?)?\s*=\s*([^=<>]+)"
)
_TOGETHER = re.compile(r"\(\s*([A-Za-z](?:\s*,\s*[A-Za-z])+)\s*\)\s*=\s*\((.+)\)")
_OPENING, _CLOSING = "([{", ")]}"

Assignments = tuple[tuple[str, str, str], ...]
"""The name, its index and the value of each."""


def by_name(gold: str, prediction: str) -> tuple[str, str] | None:
    """Both sides as lists of values, if one of them names several values.

    None where they are values of other names.

    The values of a system stand in a tuple in the order of their names, so each is compared with
    the value of the same name; roots are a list in any order.

    >>> by_name("x=1, y=2", "y=2 and x=1"), by_name("x=2 or x=-3", "x_1=-3, x_2=2")
    (('(1, 2)', '(1, 2)'), ('2, -3', '-3, 2'))
    """
    named = _assignments(gold), _assignments(prediction)
    systems = [bool(a) and len({name for name, _, _ in a}) == len(a) for a in named]
    roots = [len({name for name, _, _ in a}) == 1 for a in named]
    if all(systems):
        names = [sorted(name for name, _, _ in a) for a in named]
        if names[0] != names[1]:
            return None
        return _tuple(named[0]), _tuple(named[1])
    if named[0] and not named[1] and "=" in prediction:
        return gold, prediction  # equations to be solved, not values
    if systems[0] and not named[1]:
        bare = len(split_members(prediction)) == len(named[0])
        return _tuple(named[0]), f"({prediction})" if bare else prediction
    if systems[1] and not named[0] and gold.startswith("("):
        return gold, _tuple(named[1])
    if (roots[0] or not named[0]) and (roots[1] or not named[1]):
        return _list(named[0]) or gold, _list(named[1]) or prediction
    return gold, prediction


@lru_cache(1024)
def _assignments(text: str) -> Assignments:
    """The assignments of a text that consists of two or more, else none."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2].strip()
    if together := _TOGETHER.fullmatch(text):
        names, values = split_members(together[1]), split_members(together[2])
        text = ", ".join(map("=".join, zip(names, values, strict=False)))
        text = text if len(names) == len(values) else ""
    matches = [_ASSIGNMENT.fullmatch(piece) for piece in split_members(text)] if "=" in text else []
    if len(matches) < 2:
        return ()
    found = tuple(("".join(m[1].split()), m[2] or "", m[3].strip()) for m in matches if m and m[1])
    return found if len(found) == len(matches) else ()


def split_members(text: str) -> list[str]:
    """The pieces between separators outside brackets."""
    pieces, start, depth = [], 0, 0
    depths = []
    for c in text:
        depth += (c in _OPENING) - (c in _CLOSING)
        depths.append(depth)
    for separator in _SEPARATOR.finditer(text):
        if depths[separator.start()] == 0:
            pieces.append(text[start : separator.start()])
            start = separator.end()
    return [*pieces, text[start:]]


def _tuple(assignments: Assignments) -> str:
    return f"({', '.join(value for _, _, value in sorted(assignments))})"


def _list(assignments: Assignments) -> str:
    return ", ".join(value for _, _, value in assignments)
