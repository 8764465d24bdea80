"""The columns in which a row holds the options of its question, and golds that lack them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mmr1.data.forms.columns import OPTIONS, first_of
from mmr1.data.forms.form import Row
from mmr1.data.forms.options import LETTERS, Options, read_options
from mmr1.types import Sample

ALIASES = ("answer_choices", "candidates", "choice", "option", "mc_options", "mc_choices")
"""Other names of a column of options. They are taken as options if the gold answer is one."""

# choice_a, optionA, "Option A", option1, a0, and bare letters
_ONE = re.compile(r"(option|choice|opt|candidate|answer|ans|a)?[ _]?([A-Ja-j]|\d)")
_LETTER = re.compile(r"(?:\$|\\boxed\{|\\text\{|\W)*([A-J])(?:\W)*")
# A letter that stands alone and is no article: "A. cat", "(B)", "A or B", "points A, B"
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
    """Of a row's columns, those that may hold its options: all of them, or one each."""
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


def refuse_bare_letter(sample: Sample, row: Row) -> None:
    """Check that a gold answer of one letter has options to choose from.

    Without them the model cannot know what the letter stands for, and is never right but by chance.

    Raises:
        ValueError: There are none in the question or beside it, and no task type is stated.
    """
    answer = sample.answer
    if (
        not isinstance(answer, str)
        or len(answer) > 20
        or sample.task not in (None, "math", "choice")
    ):
        return
    if (match := _LETTER.fullmatch(answer)) is None:
        return
    asked = "\n".join(m.text for m in sample.messages if m.role != "assistant")
    if _is_offered(match[1], asked) or _is_shown(sample, asked):
        return
    raise ValueError(
        f"the answer '{answer}' is a letter, and neither the question nor a column that is read "
        f"holds options (the row has {', '.join(map(str, row))}); name their column or columns: "
        "mmr1-data convert rows --map options=COLUMN or options=COLUMN,COLUMN,…; or state another "
        "task in a column 'task' ('exact')"
    )


def _is_offered(letter: str, asked: str) -> bool:
    standing = {match[1] for match in _STANDING.finditer(asked)}
    standing |= {(match[1] or match[2]).upper() for match in _LOWER.finditer(asked)}
    for match in _RANGE.finditer(asked):
        standing |= set(LETTERS[LETTERS.index(match[1]) : LETTERS.index(match[2]) + 1])
    return letter in standing and len(standing) > 1


def _is_shown(sample: Sample, asked: str) -> bool:
    options = sample.meta.get("options") or ()
    texts = options.values() if isinstance(options, Mapping) else options
    return bool(options) and all(str(text) in asked for text in texts)
