"""Read the answer of a completion as a value of a type: the entry for rewards and plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from mmr1.rewards.item import BadGoldError, no_answer, unread
from mmr1.rewards.reading.booleans import read_boolean
from mmr1.rewards.reading.boxes import read_boxes
from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.choices import options_by_letter, read_choice
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.quantities import read_quantity
from mmr1.rewards.reading.spans import read_span
from mmr1.rewards.reading.stance import Reading, Unread
from mmr1.types import Reward

Kind = Literal["number", "choice", "boolean", "boxes", "span", "text"]
Value = TypeVar("Value")
Score = TypeVar("Score")

_READERS: dict[str, Callable[[str], Any]] = {
    "number": read_quantity,
    "boolean": read_boolean,
    "boxes": read_boxes,
    "span": read_span,
    "text": unwrap,
}


def read_answer(
    completion: str,
    kind: Kind,
    *,
    options: Sequence[str] | Mapping[str, str] | None = None,
    extract: Where = "auto",
) -> Reading[Any] | Unread:
    """Read the answer of a completion as the built-in rewards do.

    Args:
        completion: The whole completion.
        kind: Type of the value: ``number`` (a ``Quantity`` with ``value``, a ``Fraction``, and
            ``unit``), ``choice`` (a letter), ``boolean``, ``boxes`` (a list of ``(x1, y1, x2,
            y2)``), ``span`` (``(start, end)`` in seconds) or ``text`` (without its wrappers).
        options: Texts of the options, for ``choice``: in order, or by letter.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    Returns:
        A ``Reading``, whose ``value`` is of that type, or an ``Unread``, which is false and has a
        ``reason``.

    Raises:
        ValueError: If the kind is unknown.

    >>> read_answer("<answer>It is 5 ft 6 in, not 6 ft</answer>", "number").value.value
    Fraction(66, 1)
    >>> read_answer("<answer>3 or 4</answer>", "number").reason, read_answer("3", "number").reason
    ('no number', 'no answer')
    """
    if kind != "choice" and kind not in _READERS:
        raise ValueError(f"kind={kind!r}: known are choice, {', '.join(_READERS)}")
    text = extract_answer(completion, extract)
    if text is None:
        return Unread("no answer")
    if kind == "choice":
        return read_choice(text, options_by_letter(options))
    value = _READERS[kind](text)
    return value if isinstance(value, Reading | Unread) else Reading(value, 0, len(text))


def score_answer(
    completion: str,
    extract: Where,
    read: Callable[[str], Value | Unread],
    score: Callable[[Value], Score],
) -> Score | Reward:
    """Score what a reader makes of a completion's answer; a status where there is none."""
    text = extract_answer(completion, extract)
    if text is None:
        return no_answer()
    value = read(text)
    return unread(value.reason) if isinstance(value, Unread) else score(value)


def read_gold(
    answer: Any,
    what: str,
    read: Callable[[str], Value | Unread],
    of_json: Callable[[Any], Value | Unread],
) -> Value:
    """Return a gold answer that is text or a value as JSON has it.

    Raises:
        BadGoldError: If it cannot be read.
    """
    try:
        text = extract_answer(answer, "whole") if isinstance(answer, str) else None
        value = read(text or "") if isinstance(answer, str) else of_json(answer)
    except ValueError as error:
        value = Unread(str(error))
    if isinstance(value, Unread):
        raise BadGoldError(f"the gold answer {answer!r:.60} is not {what}: {value.reason}")
    return value
