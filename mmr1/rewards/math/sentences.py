"""Sentences around an answer: the statement in a plain one, and explanations behind it."""

from __future__ import annotations

import re

from mmr1.rewards.reading.qualifiers import is_negated, is_qualified
from mmr1.rewards.reading.units import split_unit
from mmr1.rewards.reading.words import with_digits

_OPENING = re.compile(
    r"(?:there (?:are|is|were|was|will be)"
    r"|(?:it|this|that) (?:is|was|has|equals|takes|costs)"
    r"|(?:i|he|she|they|we|you) (?:counted|count|see|has|have|had|needs|need|gets|get)"
    r"|the (?:[a-z]+ ){1,6}?(?:is|are|was|were|equals))"
    r" (?:(?:exactly|only|a total of|equal to) )*(?=[-+$(\\]*[\d\\])",
    re.IGNORECASE,
)
# With one of these a sentence does not state the number that stands in it.
_VAGUE = re.compile(r"\b(?:and|to|about|around|roughly|approximately|over|under)\b", re.IGNORECASE)
# What follows is the place of what was measured, not what was measured.
_PLACE = re.compile(
    r"\s+(?:(?:in|on|at|inside|within|for|from|with|of|under|behind)\s+[A-Za-z]{2,}\b.*"
    r"|(?:left|remaining|altogether|here|there|visible|shown|long|wide|tall|high|deep|old)\b.*)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NUMBER_BEHIND = re.compile(r"(?<![\^{\d])\d")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MAX_SENTENCE = 200

_REASON = re.compile(
    r"(?<![A-Za-z0-9-])(?:(?P<said>which (?:is|equals|comes|follows) |note that)|"
    r"(?P<noun>explanation|reason(?:ing)?|justification|rationale|verification|proof)\b|because|"
    r"due to|given that|(?:obtained|found|calculated) (?:by|from) |since |by (?:the|using) |"
    r"as (?:the|there|it|we|each|all|both|shown) )|因为|由于|理由|解析|解释",
    re.IGNORECASE,
)
_OF_ITSELF = re.compile(
    r"\b(?:this|that|it|which|answer)\s?(?:is|was|must be|seems)?(?:n['’]t|\s(?:not|\w+ly)?\s?"
    r"(?:wrong|incorrect|false|invalid|impossible|untrue|a mistake))",
    re.IGNORECASE,
)
# What stands between an answer and its explanation.
_JOINT = re.compile(
    r"(?P<sign>[\s,;.:(–—-]*)(?:(?<=\s)[*_#]{1,4}\s?)?(?:this is |the )?$", re.IGNORECASE
)
_ASIDE = re.compile(r"(?P<answer>.*[^\s(])\s*\((?P<aside>[^()]*)\)", re.DOTALL)
_PLAIN_ASIDE = re.compile(r"[A-Za-z][A-Za-z'’\-]*(?:,? [A-Za-z0-9'’°\-]+){2,}\.?")
# With one of these the explanation continues to another answer.
_CORRECTION = re.compile(
    r"\b(?:answers?|final(?:ly)?|wait|actually|but|however|instead|alternatively|correct(?:ion|ed)?|"
    r"rather|sorry|oops|hmm|mistaken?|should be|must be|could be|might be|may be|would be|"
    r"another|also|too|second|other|or|unless|if|option|choice|\\boxed|so it is|therefore|thus|"
    r"hence)\b|答案|但|应该|应为|或|因此|所以",
    re.IGNORECASE,
)


def stated_quantity(text: str) -> str | None:
    """The quantity that a plain sentence states, with what it counts, or None.

    A sentence with a second number or with a hedge ("not", "or", "more than") states none.

    >>> stated_quantity("There are 3 red cubes on the table"), stated_quantity("There are not 3")
    ('3 cubes', None)
    >>> stated_quantity("The area is 12 square meters"), stated_quantity("There are three")
    ('12 square meters', '3')
    """
    if len(text) > _MAX_SENTENCE or " " not in text:
        return None
    text = with_digits(text)
    if not (opening := _OPENING.match(text)):
        return None
    words = _COMMANDS.sub(" ", text)
    if is_qualified(words) or _VAGUE.search(words):
        return None
    quantity = _PLACE.sub("", text[opening.end() :]).strip()
    first_word = _WORD.search(quantity)
    if first_word is None:
        return quantity
    if _NUMBER_BEHIND.search(text[opening.end() + first_word.start() :]):
        return None
    if split_unit(quantity, bare_letters=False)[1]:
        return quantity
    nouns = _WORD.findall(quantity)
    return f"{quantity[: first_word.start()].strip()} {nouns[-1]}"


def without_explanation(text: str) -> str:
    """The answer without the explanation behind it; the text itself where there is none.

    Only what calls itself an explanation is one ("because ...", "Explanation: ..."), a phrase in
    parentheses, and lines that lead to the same number. One that speaks of another answer stays,
    and the whole is then no answer.

    >>> without_explanation("7 because 3 + 4 = 7"), without_explanation("5 (or six of them)")
    ('7', '5 (or six of them)')
    """
    if " " not in text and text.isascii():
        return text
    if reason := _REASON.search(text):
        return _before(text, reason)
    answer, newline, rest = text.partition("\n")
    if newline and _restates(answer, rest):
        return answer.strip()
    if text.endswith((")", ").")) and (aside := _ASIDE.fullmatch(text.removesuffix("."))):
        said = aside["aside"]
        if _PLAIN_ASIDE.fullmatch(said) and not (_CORRECTION.search(said) or is_qualified(said)):
            return aside["answer"]
    return text


def _before(text: str, reason: re.Match[str]) -> str:
    """The answer before its reason, or the text if that is not a reason for an answer."""
    joint = _JOINT.search(text, max(0, reason.start() - 40), reason.start())
    assert joint is not None  # it matches the empty text
    answer, sign = text[: joint.start()].strip(), joint["sign"].strip(" ")
    since_number = reason[0].lower() == "since " and text[reason.end()].isdigit()
    if not answer or (not sign and (reason["noun"] or since_number)):
        return text
    tail = text[reason.end() :]
    taken_back = is_negated(tail) if reason["said"] else _OF_ITSELF.search(tail)
    return text if taken_back or _CORRECTION.search(tail) else answer


def _restates(answer: str, rest: str) -> bool:
    """True if the lines behind an answer are prose that ends with its number."""
    numbers = _NUMBER.findall(answer), _NUMBER.findall(rest)
    if len(numbers[0]) != 1 or not numbers[1] or numbers[1][-1] != numbers[0][0]:
        return False
    prose = len(_WORD.findall(_COMMANDS.sub(" ", rest))) >= 3
    return prose and not (_CORRECTION.search(rest) or is_qualified(rest))
