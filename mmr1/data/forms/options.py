"""The options of a multiple-choice question, each under its letter."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.rewards.answers.choice import named_option

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# "A. cat", "(B) dog", "C: bee", "D) ant"
_LABELLED = re.compile(r"\s*(?:\(([A-Z])\)|([A-Z])[.):：、．])(\s*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a question.

    Attributes:
        by_letter: In the order in which they are shown.
        labelled: The row itself gives them their letters.
    """

    by_letter: Mapping[str, str]
    labelled: bool = False

    def ask(self, question: str) -> str:
        """The question and its options, each on a line with its letter.

        A question that lists them itself is returned unchanged.
        """
        if all(_is_listed(question, *option) for option in self.by_letter.items()):
            return question
        lines = [f"{letter}. {text}" for letter, text in self.by_letter.items()]
        return "\n".join([question, *lines])

    def gold(self, answer: Any) -> str:
        """The letter of the gold answer, which is a letter or the text of an option.

        Raises:
            ValueError: It is none of the options, or could be two of them.
        """
        text = str(answer).strip()
        letter = named_option(text, self.by_letter) if text else None
        shown = ", ".join(f"{letter}. {option}" for letter, option in self.by_letter.items())
        if letter is None:
            raise ValueError(f"the answer {text[:60]!r} is none of the options ({shown:.200})")
        texts = [key for key, option in self.by_letter.items() if option == text != key]
        if texts and text in self.by_letter and not self.labelled:
            raise ValueError(
                f"the answer '{text}' is a letter and also the text of option {texts[0]} "
                f"({shown}); write the letters into the options, as 'A. …'"
            )
        return letter

    @property
    def for_reward(self) -> Any:
        """As ``meta.options`` of a record: texts in order, or by letter if these are not A, B, …"""
        in_order = "".join(self.by_letter) == LETTERS[: len(self.by_letter)]
        return list(self.by_letter.values()) if in_order else dict(self.by_letter)


def read_options(value: Any) -> Options | None:
    """The options of a column: a list, a mapping by letter, or a list written as text.

    Letters that the texts carry stay: ``["C. cat", "A. ant"]`` has the options C and A. Texts
    without letters of their own get A, B, … in their order.

    Returns:
        None for an empty column.

    Raises:
        ValueError: The column holds something else, two options have one letter, or there are more
            than 26.
    """
    if value is None or value == "" or (isinstance(value, Sequence | Mapping) and not value):
        return None
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        return Options({str(k).strip(): str(v) for k, v in value.items() if v is not None}, True)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise ValueError(f"the options are no list: {value!r:.60}")
    texts = [str(option).strip() for option in value]
    if len(texts) > len(LETTERS):
        raise ValueError(f"{len(texts)} options are more than there are letters")
    own = _own_letters(texts)
    return Options(own or _in_order(texts), labelled=bool(own))


def with_options(question: str, options: Any) -> str:
    """The question and its options, each on a line with its letter.

    >>> print(with_options("Which?", ["red", "(B) blue"]))
    Which?
    A. red
    B. blue
    >>> print(with_options("Which?", ["C. cat", "A. ant", "B. bee"]))
    Which?
    C. cat
    A. ant
    B. bee
    """
    read = read_options(options)
    return question if read is None else read.ask(question)


def _parsed(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    if not isinstance(value, list | tuple | dict):
        raise ValueError(f"the options are no list: {text!r:.60}")
    return value


def _own_letters(texts: Sequence[str]) -> dict[str, str]:
    """The options by the letters that their texts carry; empty if they carry none of their own.

    All texts must have a letter. Those of ``["A.M.", "P.M."]`` and of ``["E. coli", "yeast"]`` are
    no labels.
    """
    labels = [_LABELLED.fullmatch(text) for text in texts]
    letters = [match[1] or match[2] for match in labels if match is not None]
    if len(letters) < len(texts):
        return {}
    in_order = "".join(sorted(letters)) == LETTERS[: len(letters)]
    if not in_order and not all(match[1] or match[3] for match in labels if match is not None):
        return {}
    if len(set(letters)) < len(letters):
        raise ValueError(f"two options have one letter: {', '.join(texts)[:200]}")
    return {match[1] or match[2]: match[4] for match in labels if match is not None}


def _in_order(texts: Sequence[str]) -> dict[str, str]:
    """The options as A, B, …; a text that begins with its own letter has it once."""
    return {letter: _without(letter, text) for letter, text in zip(LETTERS, texts, strict=False)}


def _without(letter: str, text: str) -> str:
    match = _LABELLED.fullmatch(text)
    if match is None or letter not in (match[1], match[2]) or not (match[1] or match[3]):
        return text
    return match[4]


def _is_listed(question: str, letter: str, text: str) -> bool:
    label = rf"(?:\({letter}\)|(?<!\w){letter}[.):：、．])"
    return re.search(rf"{label}\s*{re.escape(text)}", question) is not None
