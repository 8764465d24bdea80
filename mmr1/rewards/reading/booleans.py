"""Yes and no, true and false."""

from __future__ import annotations

import re

from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.stance import Unread
from mmr1.rewards.reading.vocabulary import any_of

TRUTH = re.compile(r"(?i)yes|no|true|false|是|否")
_STATED = re.compile(
    rf"(?is)(?:(?:it|this|that|which|the (?:answer|statement|claim|sentence))(?:['’]s| is)\s+)?"
    rf"(?:(?P<no>{any_of('no')})|(?P<yes>{any_of('yes')}))(?![a-z-])(?P<rest>.*)"
)
_OPPOSITE = {
    True: re.compile(r"(?i)\b(?:no|false|incorrect|not (?:really|true|correct))\b(?! \w)|不"),
    False: re.compile(r"(?i)\b(?:yes|true|correct)\b"),
}
_OPEN = re.compile(
    r"(?i)^[^\s,.;:!?()–—-]|"
    r"^ (?!(?:it|there|th(?:is|at|ey|e)|s?he|we|i|you|because|since|as)\b)[a-z]|"
    r"\b(?:or|maybe|perhaps|possibly|unsure|unclear|uncertain)\b"
)


def read_boolean(text: str) -> bool | Unread:
    """Return True for an answer that begins with yes or true, False for no or false.

    What follows explains it, unless it says the opposite or leaves it open.

    >>> read_boolean("Yes, it is."), read_boolean("**No**"), read_boolean("yes and no").reason
    (True, False, 'neither yes nor no')
    """
    value = boolean_of(text)
    return Unread("neither yes nor no") if value is None else value


def boolean_of(text: str) -> bool | None:
    """Return the boolean of a text, or None; see ``read_boolean``."""
    match = _STATED.fullmatch(unwrap(text))
    if match is None or _OPEN.search(match["rest"]):
        return None
    value = match["yes"] is not None
    return None if _OPPOSITE[value].search(match["rest"]) else value
