"""The options of a multiple-choice question, each under its letter."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# "A. cat", "(B) dog", "C: bee", "D) ant"
_LABELLED = re.compile(r"\s*(?:\(([A-Z])\)|([A-Z])[.):：、．])(\s*)(.*)", re.DOTALL)
_LABEL = re.compile(r"(?:(?<=[\s;,|；，])|^)(?:\(([A-Z])\)|([A-Z])[.):：、．])\s*")
_NAN = re.compile(r"(?<![\w'\"])nan(?![\w'\"])")


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

    def gold(self, answer: Any, columns: str = "options=…,answer_index=…") -> str:
        """The letter of the gold answer, which is a letter or the text of an option.

        Args:
            answer: The answer.
            columns: For the message: how ``--map`` names the options and a position among them.

        Raises:
            ValueError: It is none of the options, or could be two of them.
        """
        from mmr1.rewards.answers.choice import named_option  # for few datasets, and not light

        text = str(answer).strip()
        letter = named_option(text, self.by_letter) if text else None
        shown = ", ".join(f"{letter}. {option}" for letter, option in self.by_letter.items())
        remedy = (
            "if it is the position of an option, counted from 0, convert with mmr1-data convert "
            f"rows --map question=question,{columns}"
        )
        if letter is None:
            position = f"; {remedy}" if text.isdigit() else ""
            raise ValueError(
                f"the answer {text[:60]!r} is none of the options ({shown:.200}){position}"
            )
        self._refuse_two_meanings(answer, letter, remedy)
        gold = self.by_letter[letter]
        equal = [key for key, option in self.by_letter.items() if option == gold]
        if gold and len(equal) > 1:  # without texts the options are letters in the picture
            raise ValueError(
                f"the options {' and '.join(equal)} have the same text {gold[:60]!r}, and one of "
                "them is the answer; drop the row"
            )
        texts = [key for key, option in self.by_letter.items() if option == text != key]
        if texts and text in self.by_letter and not self.labelled:
            raise ValueError(
                f"the answer '{text}' is a letter and also the text of option {texts[0]} "
                f"({shown}); write the letters into the options, as 'A. …'"
            )
        return letter

    def _refuse_two_meanings(self, answer: Any, letter: str, remedy: str) -> None:
        """A number may be an option's text and the position of another one."""
        if not isinstance(answer, int) or isinstance(answer, bool):
            return
        letters = list(self.by_letter)
        if 0 <= answer < len(letters) and letters[answer] != letter:
            raise ValueError(
                f"the answer {answer} is the text of option {letter} and the position of option "
                f"{letters[answer]}; write the text as a text, or {remedy}"
            )

    def at(self, position: Any) -> str:
        """The letter of the option at a position, counted from 0.

        Raises:
            ValueError: There is none.
        """
        letters = list(self.by_letter)
        number = int(position) if str(position).strip().isdigit() else -1
        if not 0 <= number < len(letters):
            raise ValueError(
                f"{position!r} is no position of one of {len(letters)} options, counted from 0"
            )
        return letters[number]

    @property
    def for_reward(self) -> Any:
        """As ``meta.options`` of a record: texts in order, or by letter if these are not A, B, …"""
        in_order = "".join(self.by_letter) == LETTERS[: len(self.by_letter)]
        return list(self.by_letter.values()) if in_order else dict(self.by_letter)


def read_options(value: Any) -> Options | None:
    """The options of a column: a list, a mapping by letter, or one of them written as text.

    Letters that the texts carry stay: ``["C. cat", "A. ant"]`` has the options C and A. Texts
    without letters of their own get A, B, … in their order. Padding (null, an empty text, NaN) is
    no option; the others keep their letters.

    Returns:
        None for an empty column.

    Raises:
        ValueError: The column holds something else, two options have one letter, or there are more
            than 26.
    """
    if isinstance(value, str) and not _is_padding(value):
        value = _parsed(value)
    if isinstance(value, Mapping) and set(value) == {"label", "text"}:  # ARC, CommonsenseQA
        value = dict(zip(value["label"], value["text"], strict=True))
    if isinstance(value, Mapping):
        by_letter = {str(k).strip(): str(v).strip() for k, v in value.items() if not _is_padding(v)}
        return Options(by_letter, True) if by_letter else None
    if _is_padding(value):
        return None
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise ValueError(f"the options are no list: {value!r:.60}")
    places = [place for place, option in enumerate(value) if not _is_padding(option)]
    texts = [str(value[place]).strip() for place in places]
    if not texts:
        return None
    if places[-1] >= len(LETTERS):
        raise ValueError(f"{len(value)} options are more than there are letters")
    own = _own_letters(texts)
    return Options(own or _in_order(places, texts), labelled=bool(own))


def _is_padding(option: Any) -> bool:
    """Whether an entry stands for no option, in rows that all have the same number of them."""
    if isinstance(option, str):
        return option.strip() in ("", "nan", "NaN")
    return option is None or (isinstance(option, float) and math.isnan(option))


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
        value = ast.literal_eval(_NAN.sub("None", text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = _labelled_text(text)
    if not isinstance(value, list | tuple | dict):
        raise ValueError(f"the options are no list: {text!r:.60}")
    return value


def _labelled_text(text: str) -> list[str] | None:
    """The options of a text such as ``A. 1; B. 2``, or None; their letters are in order."""
    labels: list[re.Match[str]] = []
    for match in _LABEL.finditer(text):
        if (match[1] or match[2]) == LETTERS[len(labels)]:
            labels.append(match)
    if len(labels) < 2 or text[: labels[0].start()].strip():
        return None
    ends = [match.start() for match in labels[1:]] + [len(text)]
    spans = zip(labels, ends, strict=True)
    texts = [text[label.end() : end].strip().rstrip(";,|；，").strip() for label, end in spans]
    return [f"{letter}. {option}" for letter, option in zip(LETTERS, texts, strict=False)]


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


def _in_order(places: Sequence[int], texts: Sequence[str]) -> dict[str, str]:
    """The options by the letters of their places; a text that begins with its own has it once."""
    letters = [LETTERS[place] for place in places]
    return {letter: _without(letter, text) for letter, text in zip(letters, texts, strict=True)}


def _without(letter: str, text: str) -> str:
    match = _LABELLED.fullmatch(text)
    if match is None or letter not in (match[1], match[2]) or not (match[1] or match[3]):
        return text
    return match[4]


def _is_listed(question: str, letter: str, text: str) -> bool:
    label = rf"(?:\({letter}\)|(?<!\w){letter}[.):：、．])"
    return re.search(rf"{label}\s*{re.escape(text)}", question) is not None
