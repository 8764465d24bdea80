"""Multiple choice: one letter, or the option's own text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mmr1.rewards.item import BadGoldError, no_answer
from mmr1.rewards.math.equality import MAX_ANSWER, decide
from mmr1.rewards.math.sentences import without_explanation
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.latex import normalise
from mmr1.rewards.reading.qualifiers import is_negated
from mmr1.types import Reward

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALONE = re.compile(r"\W*+(?:(?:option|choice|answer)\b\W*+)?([A-Za-z])\W*", re.IGNORECASE)
_LABELLED = re.compile(r"\s*[(\[]?([A-Za-z])(?:[)\].:]+\s*|\s+[-–]\s+)(\S.*)", re.DOTALL)
_SAID_OF_LETTER = re.compile(
    r"\b(?:wrong|incorrect|false|untrue|correct|right|true|answers?|options?|choices?|out|except|"
    r"excluded|eliminated|maybe|perhaps|possibly|probably|(?:un)?likely|doubt\w*|might|could|sure|fits?|works?|appl(?:y|ies))\b|[?？]|不对|错|"
    r"正确|不是|排除|可能",
    re.IGNORECASE,
)
_STANDING = re.compile(r"(?<![\w'])([A-Z])(?![\w'])")
_ARTICLE = re.compile(r"(?<![\w'(\[])(?:A|I)(?= (?!or\b|and\b|is\b|but\b|because\b)[a-z])")


def choice(
    completion: str,
    answer: Any,
    *,
    options: Sequence[str] | Mapping[str, str] | None = None,
    choices: Sequence[str] | Mapping[str, str] | None = None,
    extract: Where = "auto",
) -> float | Reward:
    """1 where the answer names the gold option and no other, else 0.

    ``(B)``, ``B.``, ``Option b`` and ``B. 12 cm`` all name option B, and so does the text of
    option B by itself. Two different letters score 0, and so do a letter beside another option's
    text and a letter that is said not to be the answer, as in "not B" or "B is wrong".

    Args:
        completion: The whole completion.
        answer: The gold letter, or the text of the gold option.
        options: The item's options in order, or by letter; ``choices`` is the same.
        choices: See ``options``.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> choice("<answer>(B) 5</answer>", "B", options=["4", "5"])
    1.0
    >>> choice("<answer>A or B</answer>", "B")
    0.0
    """
    texts = _texts(options or choices)
    gold = _gold_letter(answer, texts)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    if len(prediction) > MAX_ANSWER:
        return 0.0
    return float(named_option(prediction, texts) == gold)


def choice_gold(
    answer: Any,
    *,
    options: Sequence[str] | Mapping[str, str] | None = None,
    choices: Sequence[str] | Mapping[str, str] | None = None,
) -> None:
    """Raises BadGoldError when the gold answer is none of the options."""
    _gold_letter(answer, _texts(options or choices))


def named_option(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the one option that a text names, or None.

    Args:
        text: An answer.
        options: Option texts by letter. If it is empty, any letter is an option.
    """
    if text.strip() in options:  # before the texts: an option may be "B" under the letter A
        return text.strip()
    by_text = _letters_by_text(tuple(options.items()))
    if letter_of_text := by_text.get(_plain(text)):
        return letter_of_text
    text = without_explanation(text)
    if any(map(str.isdigit, text)):  # 140 for 140°
        equal = [letter for letter, option in options.items() if decide(option, text) == 1.0]
        if len(equal) == 1:
            return equal[0]
    letters = set(options) or set(LETTERS)
    labelled = _LABELLED.fullmatch(text) or _LABELLED.fullmatch(normalise(text))
    if labelled and labelled[1].upper() in letters and _plain(labelled[2]) in by_text:
        letter = labelled[1].upper()
        return letter if by_text[_plain(labelled[2])] == letter else None
    if is_negated(text) and not (labelled and _is_text_of_option(labelled, options)):
        return None
    text = normalise(text)
    if (alone := _ALONE.fullmatch(text)) and alone[1].upper() in letters:
        return alone[1].upper()
    standing = set(_STANDING.findall(_ARTICLE.sub(" ", text))) & letters
    return standing.pop() if len(standing) == 1 else None


def _is_text_of_option(labelled: re.Match[str], options: Mapping[str, str]) -> bool:
    """True if the words behind a letter are its option's, which may say ``not`` or ``none``.

    A verdict on the letter ("is wrong") is not, nor a ``not`` that the option itself lacks.
    """
    option = options.get(labelled[1].upper(), labelled[2])
    return is_negated(option) and _SAID_OF_LETTER.search(labelled[2]) is None


@lru_cache(1024)
def _letters_by_text(options: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {_plain(option): letter for letter, option in options}


def _texts(options: Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Option texts by letter.

    A leading ``A.`` or ``(A)`` of a text is its own label. Labels in another order than A, B, …
    stay: of ``["C. cat", "A. ant", "B. bee"]`` option C is the cat.
    """
    if not options:
        return {}
    if isinstance(options, Mapping):
        return {str(letter).upper(): str(text) for letter, text in options.items()}
    labelled = [_LABELLED.fullmatch(str(text)) for text in options]
    own = {match[1].upper(): match[2] for match in labelled if match is not None}
    if set(own) == set(LETTERS[: len(options)]):
        return own
    return {
        letter: match[2] if match is not None and match[1].upper() == letter else str(text)
        for letter, text, match in zip(LETTERS, options, labelled, strict=False)
    }


def _gold_letter(answer: Any, options: Mapping[str, str]) -> str:
    text = extract_answer(str(answer), "whole") or "" if answer is not None else ""
    letter = named_option(text, options)
    if letter is None:
        raise BadGoldError(f"the gold answer {answer!r:.60} names none of the options")
    return letter


def _plain(text: str) -> str:
    return normalise(text).casefold().replace(" ", "")
