"""What a text says of its answers: which of its pieces are asserted, negated or hedged.

A text is cut at its contrasts ("C, not A", "not A but C", "5; 6 is wrong"), and each piece has its
own stance. The vocabulary is long and refuses more than it must: an answer that is not understood
is unread and scores 0, while a wrong one that is rewarded would be learnt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.vocabulary import any_of, words

MAX_SENTENCE = 600  # characters of words around a number or a letter
MAX_MARKERS = 3  # so many of the last retractions and conclusions are tried
MAX_ANSWER = 4_000  # characters; nobody's gold answer is longer, and parsing is superlinear
Value = TypeVar("Value", bound=Hashable)

_NEGATING = f"{words('negating')}|{any_of('negating_signs')}"
_NEGATED = re.compile(f"(?i){_NEGATING}")
_NEGATED_LETTER = re.compile(rf"(?i){words('negating_letters')}|^-\s?(?=[A-Z]$)")
_HEDGED = re.compile(f"(?i){words('hedging')}|或|可能")
_ALTERED = re.compile(f"(?i){words('altering')}|{any_of('altering_signs')}")
_NO_UNIT = re.compile("(?i)" + any_of("negating", "hedging", "no_units"))
_RETRACTION = re.compile(
    rf"(?i)(?:{words('retracting')}|(?:^|[,;.]\s*)no(?=[,.]\s)|不对)[\s,.:!—-]*"
)
_CONCLUSION = re.compile(rf"(?i)(?:{any_of('concluding')})\s*(?:that\s+)?")
_REASON = re.compile(
    r"(?is)(?P<joint>^|(?<=[^\x00-\x7f])|[\s,;.(:–—-]+)(?:[*_#]{1,4}\s?)?(?:this is |the )?"
    rf"(?:{any_of('explaining')})(?P<rest>.*)"
)
_ASIDE = re.compile(r"(?<=\S)\s\(([^()]{3,})\)(?=[\s.,;!]|$)")
_PLAIN_ASIDE = re.compile(r"(?<=\S)\s*\([^()\\]*[A-Za-z]{2,}[^()\\]* [A-Za-z]{2,}[^()\\]*\)\.?$")
_CORRECTION = re.compile(f"(?i){words('correcting')}|{any_of('correcting_signs')}")
_OF_ITSELF = re.compile(
    r"(?i)\b(?:this|that|it|which|answer)\s?(?:is|was|must be|seems)?(?:n['’]t|\s(?:not|\w+ly)?\s?"
    r"(?:wrong|incorrect|false|invalid|impossible|untrue|a mistake))"
)
_OTHER = re.compile("(?i)" + words("another"))
_REFERS = re.compile("(?i)" + words("referring"))
_VERB = rf"(?:{any_of('verbs')})"
_CUT = re.compile(
    r"(?i)(?<!\d)\.\s+|(?<=\d)\.\s+(?=[A-Z])|[;\n。]\s*|[?!]\s+|"
    r"(?:,\s*|(?<=(?-i:[A-J\d)]))\s+)(?=(?:and\s+)?(?:\w+ly\s+)?not\b(?!\s+(?:sure|certain)))|"
    rf"[,\s]\s*(?={words('contrasting')})|"
    rf",\s*(?=(?:and\s+)?(?:it|that|this|there)(?:['’]s|\s+{_VERB}\b)|而|但|不是)|"
    rf"(?:,|(?<!(?-i:[A-J]))\sand)\s+(?=(?:option\s+)?\(?[A-J]\)?\s+{_VERB}\b)"
)
_JOINT = re.compile(r"(?i)(?:(?:and|but|yet|so|it is|it['’]s|that is)\b[\s,]*|而是|但是?)+")
_ALL_BUT = re.compile(
    r"(?i)\b(?:all|none|nothing|else|(?:any|every)(?:thing|one|body)?)(?: \w+)? but\b"
)
# An answer that is the subject of a statement is taken back, unless the statement is that it holds.
_SUBJECT = re.compile(
    rf"(?is)\W*(?:(?:option|choice|answer)\s+)?\W*(?:[A-J]|[-+]?\d[\d.,]*)\W*\s(?:{_VERB}\b|n['’]t)"
    r"(?P<rest>.*)|\W*(?:(?:option|choice)\s+)?\W*(?-i:[A-J])\W*\s(?P<verb>(?-i:[a-z]{3,}s))\b"
)
# The "not" of "7 dogs that are not brown" is said of the dogs.
_RELATIVE = re.compile(
    rf"(?<=[a-z]) (?:that|who|whose)\b (?:\w+ )?{_VERB}(?: not|n['’]t) "
    r"(?!right|correct|true|it\b|the\b|sure|certain)\w+"
)
_HOLDS = re.compile("(?i)" + words("holding"))
_GOVERNED = re.compile(
    r"(?i)(?:\s+\w+(?!\s+(?:is|are|was|were)\b))?"
    rf"(?:\s*{words('placing')})*[\s:\[(<|]*"
)
_BEGINS_WITH_NOT = re.compile(r"(?i)\s*(?:not|never|neither)\b(?:\W+\w+){0,3}\W*$")
_EXCLUDES = re.compile(rf"(?i){_NEGATING}|\boutside\b")
_BREAK = re.compile(r"[.;,\n](?!\d)|\bbut\b")
_VERDICT = re.compile(
    rf"(?i)[\])>|\s]*(?:{_VERB}\b\s*(?:\w+\s+)?(?:{_NEGATING})|fails\b|"
    r"[\s?(]+(?:wrong|no|not|incorrect)\b)"
)
_NO = rf"no (?!{words('no_absence')})(?=\w)"
_IS, _IS_NOT = r"(?:is|are|was|were|can|could|has|have)", r"(?:is|are|was|were)(?: not|n['’]t)"
_I_DO_NOT = r"(?:i|we) (?:do not|don['’]t|did not|didn['’]t|cannot|can['’]?t|could not|couldn['’]t)"
_NOTHING = re.compile(
    rf"(?is)\W*(?:(?:there|i|we|it|they|the \w+)(?:['’]s| {_IS})? (?:\w+ )?(?:{_NO}|none\b|"
    rf"nothing\b|nobody\b)|there {_IS_NOT} (?:any|an?|one)\b|{_I_DO_NOT} (?:see|find|detect|count|"
    rf"spot) (?:any|an?|one)\b|(?:none|nobody|nothing)(?:\s*\W*$| (?:of|is|"
    rf"are|there|here|visible|found)\b)|{_NO}[\w ]{{1,40}}\W*$|{_NO}(?:\w+ ){{1,4}}{_IS}\b|"
    rf"(?:the )?[\w ]{{1,40}} {_IS_NOT} (?:present|visible|in the|shown|found|there)\b|"
    r"没有|[無无]$)(?!.*\d)"
)


_STATEMENT = re.compile(
    r"(?is)(?:it|this|that|these|they|he|she|the(?: [\w'’-]+){1,6}?)(?:['’]s| is| are| was| were|"
    r" says| reads| shows)(?: (?:an?|the)(?= ))? (.+)"
)


class Stance(StrEnum):
    """Stance of a piece of text towards the answer in it."""

    ASSERTED = "asserted"
    NEGATED = "negated"
    HEDGED = "hedged"


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer without a reading of the wanted type, and why; False where it is tested."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True)
class Reading(Generic[Value]):
    """A value that a text states.

    Attributes:
        value: The value, of the type that was asked for.
        start: Offset of the piece that states it, in the cleaned answer.
        end: End of the piece, exclusive.
        stance: Stance of the text towards the value.
    """

    value: Value
    start: int
    end: int
    stance: Stance = Stance.ASSERTED


def is_negated(text: str) -> bool:
    """Return True if words take back what stands between them.

    >>> is_negated("The answer is C"), is_negated("anything but C"), is_negated("C is wrong")
    (False, True, True)
    """
    return _NEGATED.search(text) is not None


def is_altered(text: str) -> bool:
    """Return True if the words around a number make another number of it, or a bound.

    >>> is_altered("The total is 5 apples."), is_altered("at least 5"), is_altered("5 dozen")
    (False, True, True)
    """
    return _ALTERED.search(text) is not None


def is_hedged(text: str) -> bool:
    """Return True if words leave open what the answer is."""
    return _HEDGED.search(text) is not None


def is_qualifier(word: str) -> bool:
    """Return True if a word behind a number makes another number of it, and is not a unit."""
    return _NO_UNIT.fullmatch(word) is not None


def states_none(text: str) -> bool:
    """Return True if a text says that there is nothing of what was asked for.

    >>> [states_none(t) for t in ("There are no cars.", "None", "no idea", "no more than one car")]
    [True, True, False, False]
    """
    return len(text) < 200 and _NOTHING.match(text) is not None


def statement(text: str) -> str | None:
    """Return what a sentence says of its subject, without an article; None for other texts.

    A sentence that negates or hedges says nothing.

    >>> statement("It is a cat"), statement("The color of the car is red"), statement("red")
    ('cat', 'red', None)
    """
    match = _STATEMENT.fullmatch(text)
    if match is None or is_negated(text) or is_hedged(text):
        return None
    return unwrap(match[1])


def statements(text: str) -> list[str]:
    """Return what a text may say as a whole: itself, its one assertion, and what that says.

    >>> statements("red, not blue"), statements("The pet is a cat.")
    (['red, not blue', 'red'], ['The pet is a cat.', 'cat'])
    """
    if len(text) > MAX_SENTENCE:
        return [text]
    asserted = [piece.value for piece in pieces(text) if piece.stance is Stance.ASSERTED]
    texts = dict.fromkeys([text, *(asserted if len(asserted) == 1 else ())])
    return [*texts, *(said for said in map(statement, texts) if said)]


def may_exclude(text: str) -> bool:
    """Return True if a text has a word by which ``is_taken_back`` could be True of a match."""
    return _EXCLUDES.search(text) is not None


def is_taken_back(text: str, first: re.Match[str], last: re.Match[str] | None = None) -> bool:
    """Return True if a "not" governs a match, or the words behind it say that it is wrong.

    The "not" of "the man not wearing a hat is at [1, 2, 3, 4]" governs the man.
    """
    before = text[max(0, first.start() - 80) : first.start()]
    behind = text[(last or first).end() : (last or first).end() + 60]
    clause = _BREAK.split(before)[-1]
    between = [clause[match.end() :] for match in _EXCLUDES.finditer(clause)]
    between += [before[match.end() :] for match in _ALL_BUT.finditer(before)]
    begins = _BEGINS_WITH_NOT.match(clause) is not None
    return begins or any(map(_GOVERNED.fullmatch, between)) or _VERDICT.match(behind) is not None


def conclusion(text: str, reads: Callable[[str], bool]) -> tuple[int, str]:
    """Return where the part that counts begins, and that part.

    It stands behind the last retraction or conclusion, and before the reason and an aside in words
    at its end. Each is cut only if a reading is left. A text that is too long counts as a whole.
    """
    start = 0
    if len(text) > MAX_SENTENCE:
        return start, text
    for marker in (_RETRACTION, _CONCLUSION):
        for match in list(marker.finditer(text, start))[: -MAX_MARKERS - 1 : -1]:
            if reads(text[match.end() :]):
                start = match.end()
                break
    text = text[start:]
    reason = _REASON.search(text)
    if reason and _explains(reason) and reads(text[: reason.start()]):
        text = text[: reason.start()]
    aside = _PLAIN_ASIDE.search(text)
    if aside and not (_doubts(aside[0]) or is_altered(aside[0])) and reads(text[: aside.start()]):
        text = text[: aside.start()]
    return start, text


def _explains(reason: re.Match[str]) -> bool:
    """Return False for an explanation that takes its answer back, or leads to another."""
    if (reason["noun"] or reason["since"]) and not reason["joint"].strip(" "):
        return False
    return not (_OF_ITSELF.search(reason[0]) or _CORRECTION.search(reason["rest"]))


def _doubts(text: str) -> bool:
    return (_CORRECTION.search(text) or _NEGATED.search(text) or _HEDGED.search(text)) is not None


def pieces(text: str, start: int = 0) -> Iterator[Reading[str]]:
    """Yield the pieces between contrasts, each with its place and its stance."""
    position = 0
    except_for = [match.span() for match in _ALL_BUT.finditer(text)]
    cuts = [c for c in _CUT.finditer(text) if not any(a < c.end() < b for a, b in except_for)]
    for begin, end in [*((cut.start(), cut.end()) for cut in cuts), (len(text), len(text))]:
        if piece := text[position:begin].strip():
            core = piece[match.end() :] if (match := _JOINT.match(piece)) else piece
            yield Reading(core, start + position, start + begin, stance_of(core))
        position = end


def stance_of(piece: str) -> Stance:
    """Return what a piece says of the answer in it."""
    if states_none(piece):
        return Stance.ASSERTED
    piece = _RELATIVE.sub(" ", piece)
    if _NEGATED.search(piece) or _NEGATED_LETTER.search(piece) or _is_subject(piece):
        return Stance.NEGATED
    return Stance.HEDGED if _HEDGED.search(piece) else Stance.ASSERTED


def _is_subject(piece: str) -> bool:
    match = _SUBJECT.match(piece)
    return match is not None and _HOLDS.search(match["rest"] or match["verb"] or "") is None


def read_asserted(
    text: str, read: Callable[[str], Value | None], what: str
) -> Reading[Value] | Unread:
    """Return the one value that a text asserts.

    A remark without a value that negates or hedges is said of the piece before it. A value that is
    both asserted and negated is none.

    Args:
        text: A cleaned answer.
        read: Reads a piece; None where it holds no value, or no single one.
        what: Noun of the value, for the reason of an answer that is not read.
    """
    if len(text) > MAX_SENTENCE:
        return Unread(f"no {what} in a text of more than {MAX_SENTENCE} characters")
    start, core = conclusion(text, lambda part: _readings(part, 0, read) != [])
    readings = _readings(core, start, read)
    asserted = [r for r in readings if r.stance is Stance.ASSERTED]
    negated = {_meaning(r.value) for r in readings if r.stance is Stance.NEGATED}
    if not readings:
        return Unread(f"no {what}")
    if any(reading.stance is Stance.HEDGED for reading in readings):
        return Unread(f"hedged: {core:.60}")
    if not asserted or not negated.isdisjoint(_meaning(r.value) for r in asserted):
        return Unread(f"only negated: {core:.60}")
    if len({_meaning(reading.value) for reading in asserted}) > 1:
        return Unread(f"several answers: {core:.60}")
    return asserted[-1]


def _readings(text: str, start: int, read: Callable[[str], Value | None]) -> list[Reading[Value]]:
    """Return what each piece states; asides in parentheses are pieces, if a value is left."""
    asides = list(_ASIDE.finditer(text))
    outside = _ASIDE.sub(lambda match: " " * len(match[0]), text)
    parts = [(outside, start), *((aside[1], start + aside.start(1)) for aside in asides)]
    if asides and not any(read(piece.value) is not None for piece in pieces(outside)):
        parts = [(text, start)]
    found: list[Reading[Value]] = []
    for piece in (piece for part, place in parts for piece in pieces(part, place)):
        value = read(piece.value)
        if value is not None:
            found.append(Reading(value, piece.start, piece.end, piece.stance))
        elif found and _is_remark(piece):
            last = found.pop()
            stance = piece.stance if piece.stance is not Stance.ASSERTED else Stance.HEDGED
            found.append(Reading(last.value, last.start, piece.end, stance))
    return found


def _is_remark(piece: Reading[str]) -> bool:
    """Return True for words without a value that are said of the answer before them."""
    short = len(piece.value.split()) <= 5
    if piece.stance is Stance.ASSERTED:
        return _OTHER.search(piece.value) is not None or (short and is_altered(piece.value))
    return short or _REFERS.search(piece.value) is not None


def _meaning(value: Hashable) -> Hashable:
    return getattr(value, "meaning", value)
