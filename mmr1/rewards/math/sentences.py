"""Sentences that state one quantity: ``There are 3 red cubes`` is ``3 cubes``."""

from __future__ import annotations

import re

from mmr1.rewards.math.units import split_unit

_OPENING = re.compile(
    r"(?:there (?:are|is|were|was|will be)"
    r"|(?:it|this|that) (?:is|was|has|equals|takes|costs)"
    r"|(?:i|he|she|they|we|you) (?:counted|count|see|has|have|had|needs|need|gets|get)"
    r"|the (?:[a-z]+ ){1,6}?(?:is|are|was|were|equals))"
    r" (?:(?:exactly|only|a total of|equal to) )*(?=[-+$(\\]*[\d\\])",
    re.IGNORECASE,
)
# With one of these the sentence does not state the number that stands in it.
_HEDGE = re.compile(
    r"\b(?:not|no|never|or|and|but|to|than|between|about|around|roughly|approximately|nearly|"
    r"almost|either|maybe|perhaps|times|more|less|fewer|least|most|over|under|if|unless|half|"
    r"dozens?|hundreds?|thousands?|millions?|billions?)\b|n't\b",
    re.IGNORECASE,
)
# What follows is the place of what was measured, not what was measured.
_PLACE = re.compile(
    r"\s+(?:(?:in|on|at|inside|within|for|from|with|of|under|behind)\s+[A-Za-z]{2,}\b.*"
    r"|(?:left|remaining|altogether|here|there|visible|shown|long|wide|tall|high|deep|old)\b.*)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NUMBER_BEHIND = re.compile(r"(?<![\^{\d])\d")
_MAX_SENTENCE = 200


def stated_quantity(text: str) -> str | None:
    """The quantity that a plain sentence states, with what it counts, or None.

    A sentence with a second number or with a hedge ("not", "or", "more than") states none.

    >>> stated_quantity("There are 3 red cubes on the table"), stated_quantity("There are not 3")
    ('3 cubes', None)
    >>> stated_quantity("The area is 12 square meters")
    '12 square meters'
    """
    if len(text) > _MAX_SENTENCE or not (opening := _OPENING.match(text)):
        return None
    if _HEDGE.search(text):
        return None
    quantity = _PLACE.sub("", text[opening.end() :]).strip()
    first_word = _WORD.search(quantity)
    if first_word is None:
        return quantity
    if _NUMBER_BEHIND.search(text[opening.end() + first_word.start() :]):
        return None
    if split_unit(quantity, bare_letters=False)[1]:
        return quantity
    words = _WORD.findall(quantity)
    return f"{quantity[: first_word.start()].strip()} {words[-1]}"
