"""The options of a multiple-choice question, each under its letter."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mmr1.data.forms.columns import OPTIONS, first_of
from mmr1.data.forms.form import Row
from mmr1.types import Sample

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# "A. cat", "(B) dog", "C: bee", "D) ant"
_LABELLED = re.compile(r"\s*(?:\(([A-Z])\)|([A-Z])[.):：、．])(\s*)(.*)", re.DOTALL)
_LABEL = re.compile(r"(?:(?<=[\s;,|；，])|^)(?:\(([A-Z])\)|([A-Z])[.):：、．])\s*")
_NAN = re.compile(r"(?<![\w'\"])nan(?![\w'\"])")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a question.

    Attributes:
        by_letter: Options by letter, in the order in which they are shown.
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
            columns: Columns for the message: how ``--map`` names the options and a position among
                them.

        Raises:
            ValueError: If the answer is no option, or could be two of them.
        """
        from mmr1.rewards.reading.choices import read_choice  # for few datasets, and not light

        text = str(answer).strip()
        reading = read_choice(text, self.by_letter) if text else None
        letter = reading.value if reading else None
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
        """Refuse a number that is an option's text and the position of another one."""
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
            ValueError: If no option is at the position.
        """
        letters = list(self.by_letter)
        number = int(position) if str(position).strip().isdigit() else -1
        if not 0 <= number < len(letters):
            raise ValueError(
                f"{position!r} is not a position of one of {len(letters)} options, counted from 0"
            )
        return letters[number]

    @property
    def for_reward(self) -> Any:
        """The options for ``meta.options``: texts in order, or by letter if not A, B, …"""
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
        raise ValueError(f"the options are not a list: {value!r:.60}")
    places = [place for place, option in enumerate(value) if not _is_padding(option)]
    texts = [str(value[place]).strip() for place in places]
    if not texts:
        return None
    if places[-1] >= len(LETTERS):
        raise ValueError(f"{len(value)} options are more than there are letters")
    own = _own_letters(texts)
    return Options(own or _in_order(places, texts), labelled=bool(own))


def _is_padding(option: Any) -> bool:
    """True for an entry that stands for no option, where all rows have equally many."""
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
        raise ValueError(f"the options are not a list: {text!r:.60}")
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


ALIASES = ("answer_choices", "candidates", "choice", "option", "mc_options", "mc_choices")
"""Other names of a column of options. They are taken as options if the gold answer is one."""

# choice_a, optionA, "Option A", option1, a0, and bare letters
_ONE = re.compile(r"(option|choice|opt|candidate|answer|ans|a)?[ _]?([A-Ja-j]|\d)")
_LETTER = re.compile(r"(?:\$|\\boxed\{|\\text\{|\W)*([A-J])(?:\W)*")
# A letter that stands alone and is not an article: "A. cat", "(B)", "A or B", "points A, B"
_STANDING = re.compile(r"(?<![A-Za-z0-9'’])([A-J])(?![A-Za-z0-9'’])(?!(?<=A) (?!or\b|and\b)[a-z])")
_LOWER = re.compile(r"\(([a-j])\)|(?:^|\n)\s*([a-j])[.)]")
_RANGE = re.compile(r"(?<![A-Za-z])([A-J])\s*(?:[-–—~]|to)\s*([A-J])(?![A-Za-z])")


def options_of(row: Row, answer: Any) -> tuple[Options | None, tuple[str, ...]]:
    """The options of a row and the columns that hold them.

    Columns of other names than ``options`` and ``choices`` count if the gold answer is the letter
    or the text of one; else they are columns like others.

    Raises:
        ValueError: The options cannot be read; or the answer may be a position among columns.
    """
    if (value := first_of(row, OPTIONS)) is not None:
        return read_options(value), OPTIONS
    aliases, families = _other_names(tuple(row))
    for name in aliases:
        if (options := _fitting(row[name], answer)) is not None:
            return options, (name,)
    for prefix, columns in families.items():
        texts = {letter: row[column] for letter, column in columns.items()}
        if not all(isinstance(text, str | int | float | None) for text in texts.values()):
            continue
        if (options := _fitting(texts, answer)) is not None:
            return options, tuple(columns.values())
        held = sum(text is not None for text in texts.values())
        if prefix and str(answer).strip().isdigit() and int(answer) < held:
            options = read_options(texts)
            assert options is not None, "some of the columns hold an option"
            options.gold(answer, f"options={','.join(columns.values())},answer_index=answer")
    return None, ()


def _fitting(value: Any, answer: Any) -> Options | None:
    """The options of a value, if there are several and the answer is the letter or text of one."""
    if not isinstance(value, str | list | tuple | Mapping):
        return None
    try:
        options = read_options(value)
    except ValueError:
        return None
    if options is None or len(options.by_letter) < 2:
        return None
    text = str(answer).strip()
    letter = _LETTER.fullmatch(text)
    known = {*options.by_letter.values()} | {*options.by_letter}
    return options if text in known or (letter and letter[1] in options.by_letter) else None


@lru_cache(maxsize=1 << 10)
def _other_names(names: tuple[str, ...]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns that may hold a row's options: all in one, or one each."""
    return [name for name in ALIASES if name in names], _families([str(name) for name in names])


def _families(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Columns that are one option each, by letter, of every prefix: at least the first two."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        match = _ONE.fullmatch(name) or _ONE.fullmatch(name[:1].lower() + name[1:])
        if match is None or (match[1] is None and match[2].isdigit()):
            continue
        family = f"{match[1] or ''}{'#' if match[2].isdigit() else ''}"
        found.setdefault(family, {})[match[2].upper()] = name
    return {
        prefix: columns
        for p, c in found.items()
        for prefix, columns in [(p, _lettered(c))]
        if columns
    }


def _lettered(columns: Mapping[str, str]) -> dict[str, str]:
    """The columns as A, B, … in order; none if the first two are missing."""
    marks = sorted(columns)
    first = marks[0] if marks else ""
    if first not in ("A", "0", "1") or chr(ord(first) + 1) not in columns:
        return {}
    return {LETTERS[ord(mark) - ord(first)]: columns[mark] for mark in marks}


def as_choice(sample: Sample) -> Sample:
    """The sample; one of a gold answer that is a letter is a choice, if its row states no task."""
    letter = _letter_of(sample) if sample.task in (None, "math", "choice") else None
    if letter in (None, sample.answer if sample.task == "choice" else None):
        return sample
    return Sample(sample.id, sample.messages, letter, "choice", sample.source, sample.meta)


def lacks_options(sample: Sample) -> bool:
    """True for a choice whose options neither its texts nor its columns hold: a picture may."""
    letter = _letter_of(sample) if sample.task == "choice" else None
    if letter is None or sample.meta.get("options"):
        return False
    return not _is_offered(letter, "\n".join(m.text for m in sample.messages))


def _letter_of(sample: Sample) -> str | None:
    """The letter that a gold answer consists of, in whatever brackets."""
    text = sample.answer
    match = _LETTER.fullmatch(text) if isinstance(text, str) and len(text) <= 20 else None
    return match and match[1]


def _is_offered(letter: str, asked: str) -> bool:
    standing = {match[1] for match in _STANDING.finditer(asked)}
    standing |= {(match[1] or match[2]).upper() for match in _LOWER.finditer(asked)}
    for match in _RANGE.finditer(asked):
        standing |= set(LETTERS[LETTERS.index(match[1]) : LETTERS.index(match[2]) + 1])
    return letter in standing and len(standing) > 1
