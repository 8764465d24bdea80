"""The option that an answer names: its letter, its text or its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from mmr1.rewards.reading.booleans import TRUTH, boolean_of
from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.latex import normalise
from mmr1.rewards.reading.quantities import quantity_of, same_quantity, whole_quantity
from mmr1.rewards.reading.stance import Reading, Unread, is_hedged, is_negated, read_asserted
from mmr1.rewards.reading.vocabulary import any_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALONE = re.compile(r"(?i)\W*+(?:(?:option|choice|answer)\b\W*+)?([A-Za-z])\W*")
_LABELLED = re.compile(
    r"(?is)\W*(?:(?:option|choice)\s+)?[(\[]?([A-Za-z])(?:[)\].:,]+\s*|\s+[-–]\s+|\s+(?=\())(\S.*)"
)
_SAID_OF_LETTER = re.compile("(?i)" + any_of("said_of_options"))
_STANDING = re.compile(r"(?<![A-Za-z0-9_'’])([A-Z])(?![A-Za-z0-9_'’])")
_LOWER_LABEL = re.compile(r"(?<!\S)\(?([a-z])(?=\)\s)")
_ARTICLE = re.compile(r"(?<![\w'(\[])(?:A|I)(?= (?!or\b|and\b|is\b|but\b|because\b)[a-z])")
_LEADING_ARTICLE = re.compile(r"(?i)(?:an?|the)\s+")
_PLACES = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
_ORDINAL = re.compile(rf"(?i)\b({'|'.join(_PLACES)}) (?:option|choice|answer)\b")

_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"(?<![\w.,$])\d{1,2}(?!\w|[.,]\d|\s*%)")
_LABEL_NUMBER = re.compile(
    r"(?i)(?<=option )\d{1,2}\b|(?<=choice )\d{1,2}\b|(?<=\()\d{1,2}(?=\))|"
    r"^\d{1,2}(?=\W*$|[.):]+\s)"
)

Options = Mapping[str, str]


def read_choice(text: str, options: Options) -> Reading[str] | Unread:
    """Return the letter of the one option that an answer asserts.

    A letter beside another option's text is no answer, and neither are two letters.

    Args:
        text: An answer.
        options: Option texts by letter. If it is empty, any letter is an option.

    >>> read_choice("(B) 5", {"A": "4", "B": "5"}).value, read_choice("C, not A", {}).value
    ('B', 'C')
    >>> read_choice("B. 4", {"A": "4", "B": "5"}).reason, read_choice("A or B", {}).reason
    ('a letter and the text of another option', 'no option')
    """
    if options and all(map(str.isdigit, options)):
        return _read_numbered(text, options)
    if text.strip() in options:  # before the texts: an option may be "B" under the letter A
        return Reading(text.strip(), 0, len(text))
    whole = _whole(unwrap(text), options)
    if whole is not None:
        conflict = Unread("a letter and the text of another option")
        return Reading(whole, 0, len(text)) if whole else conflict
    if options and (own := _in_own_words(text, options)):
        return Reading(own, 0, len(text))
    return read_asserted(text, lambda piece: _named(piece, options), "option")


def _read_numbered(text: str, options: Options) -> Reading[str] | Unread:
    """Return the label of the one option that an answer asserts, where labels are numbers.

    A number that stands by itself is a label, unless the options have numbers: then one that is
    written as a label is.
    """
    letters = dict(zip(options, LETTERS, strict=False))
    pattern = _LABEL_NUMBER if any(map(_DIGIT.search, options.values())) else _NUMBER
    lettered = pattern.sub(lambda match: letters.get(match[0], match[0]), text)
    reading = read_choice(lettered, {letters[label]: options[label] for label in letters})
    if isinstance(reading, Unread):
        return reading
    return replace(reading, value=list(options)[LETTERS.index(reading.value)])


def _whole(text: str, options: Options) -> str | None:
    """Return the letter that a whole text names by itself; empty if it contradicts its label."""
    by_text = _letters_by_text(tuple(options.items()))
    if own := by_text.get(_plain(text)):
        return own
    labelled = _LABELLED.fullmatch(normalise(text))
    if labelled is None or labelled[1].upper() not in (options or LETTERS):
        return None
    letter, words = labelled[1].upper(), labelled[2]
    named = by_text.get(_plain(words.removeprefix("(").removesuffix(")")))
    if named is not None:
        return letter if named == letter else ""
    if _standing(words) - {letter} or _SAID_OF_LETTER.search(words):
        return None
    # The words behind a letter may be its option's, which may say "not" or "none".
    return letter if _is_qualified(words) and _is_qualified(options.get(letter, words)) else None


def _named(piece: str, options: Options) -> str | None:
    """Return the letter of the one option that a piece of text names, or None."""
    text = unwrap(piece)
    whole = _whole(text, options)
    if whole is not None:
        return whole or None
    letters = list(options or LETTERS)
    if ordinal := _ORDINAL.search(text):
        place = _PLACES[ordinal[1].lower()]
        return letters[place] if place < len(letters) else None
    text = normalise(text)
    if (alone := _ALONE.fullmatch(text)) and alone[1].upper() in letters:
        return alone[1].upper()
    text = _LOWER_LABEL.sub(lambda match: match[1].upper(), text)
    standing, inside = _standing(text) & set(letters), _options_inside(text, options)
    if not standing and (equal := _equal_numbers(piece, options)):
        return equal
    if len(standing | inside) != 1:
        return None
    return (standing | inside).pop()


def _in_own_words(text: str, options: Options) -> str | None:
    """Return the letter of the one option whose own words negate, as "No" and "It is not clear"."""
    if _standing(text) & set(options):
        return None
    inside = _options_inside(text, options)
    if len(inside) == 1 and is_negated(options[min(inside)]):
        rest = text.casefold().replace(options[min(inside)].casefold(), " ")
        return None if _is_qualified(rest) else inside.pop()
    return _by_truth(text, options)


def _standing(text: str) -> set[str]:
    """Return the capital letters that stand by themselves and are no words."""
    return set(_STANDING.findall(_ARTICLE.sub(" ", text)))


def _is_qualified(text: str) -> bool:
    return is_negated(text) or is_hedged(text)


def _options_inside(text: str, options: Options) -> set[str]:
    """Return the letters of the options whose texts stand in a sentence; the longest texts win."""
    folded, found = text.casefold(), set()
    for letter, option in sorted(options.items(), key=lambda pair: -len(pair[1])):
        words = _LEADING_ARTICLE.sub("", option.casefold(), 1)
        pattern = rf"(?<!\w){re.escape(words)}(?!\w)"
        if len(words) > 2 and re.search(pattern, folded):
            found.add(letter)
            folded = re.sub(pattern, " ", folded)
    return found


def _equal_numbers(text: str, options: Options) -> str | None:
    """Return the letter of the one option with the number of the text: 140 for 140°."""
    number = quantity_of(text) if options and any(map(str.isdigit, text)) else None
    if number is None:
        return None
    values = {letter: whole_quantity(option) for letter, option in options.items()}
    equal = [letter for letter, value in values.items() if value and same_quantity(value, number)]
    return equal[0] if len(equal) == 1 else None


def _by_truth(text: str, options: Options) -> str | None:
    """Return the letter of the one option that says yes, or no, as the text does."""
    said = boolean_of(text)
    truths = {letter: re.split(r"[,.]", option)[0].strip() for letter, option in options.items()}
    same = [k for k, v in truths.items() if TRUTH.fullmatch(v) and boolean_of(v) is said]
    return same[0] if said is not None and len(same) == 1 else None


@lru_cache(1024)
def _letters_by_text(options: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {_plain(option): letter for letter, option in options}


def options_by_letter(options: Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Return option texts by letter.

    A leading ``A.`` or ``(A)`` of a text is its own label. Labels in another order than A, B, …
    stay: of ``["C. cat", "A. ant", "B. bee"]`` option C is the cat.
    """
    if not options:
        return {}
    if isinstance(options, Mapping):
        return {str(letter).upper(): str(text) for letter, text in options.items()}
    labelled = [_OWN_LABEL.fullmatch(str(text)) for text in options]
    own = {match[1].upper(): match[2] for match in labelled if match is not None}
    numbers = {str(number) for number in range(1, len(options) + 1)}
    if set(own) in (set(LETTERS[: len(options)]), numbers):
        return own
    return {
        letter: match[2] if match is not None and match[1].upper() == letter else str(text)
        for letter, text, match in zip(LETTERS, options, labelled, strict=False)
    }


_OWN_LABEL = re.compile(r"(?s)\s*[(\[]?([A-Za-z]|\d{1,2})(?:[)\].:]+\s*|\s+[-–]\s+)(\S.*)")


def _plain(text: str) -> str:
    return normalise(_LEADING_ARTICLE.sub("", text, 1)).casefold().replace(" ", "")
