"""Words around an answer that make it wrong, a bound, or another quantity.

Words around an answer are accepted where they say nothing about it, as in "The total is 5 apples".
"Not 5", "at least 5", "5 is wrong" and "5 squared" are other answers than 5.
"""

from __future__ import annotations

import re

_NEGATIONS = (
    r"not|no|never|none|neither|nor|cannot|nothing|without|except|excepting|excluding|excludes?|"
    r"excluded|besides|but|other than|rather than|instead|aside from|apart from|unlike|contrary|"
    r"opposite (?:of|to)|far from|wrong(?:ly)?|incorrect(?:ly)?|false|untrue|invalid|impossible|"
    r"unlikely|improbable|an? (?:mistake|error|distractor|myth)|mistaken(?:ly)?|erroneous|"
    r"(?:rul(?:e|ed|es|ing)|cross(?:ed|es|ing)?) (?:[\w ]{1,20} )?out|eliminat\w+|reject\w*|"
    r"discard\w*|dismiss\w*|avoid|refus\w+|den(?:y|ies|ied)|doubt\w*|disagree\w*|hardly|barely|"
    r"scarcely|fails?|inaccurate|implausible|unsure|uncertain|refut\w+|disprov\w+|contradict\w*|"
    r"inconsistent|or|either|maybe|perhaps|possibly|if|unless|though|although|however|versus|vs|"
    r"than|between"
)
# What is said of a letter only; beside a number these name a time or a place.
_OF_LETTERS = (
    r"least|worst|(?:before|after|next to|follow(?:s|ed|ing)|preced(?:es|ed|ing)) "
    r"(?:option |choice )?\(?[A-Z]"
)
_QUANTITIES = (
    r"at least|at most|(?:at|as) (?:a )?(?:minimum|maximum)|(?:minimum|maximum) of|"
    r"(?<=\d )(?:minimum|maximum|max|tops|plus|short|off|score)|more|less|fewer|exceed\w*|"
    r"surpass\w*|up to|"
    r"as (?:many|much|few|little) as|(?:upper|lower) (?:bound|limit|estimate)|bounded|almost|"
    r"nearly|short of|shy of|(?:under|over|below|above|beyond|near|close to)(?=\s*[-+$\d])|"
    r"(?:and|so) (?:over|under|above|below|up|higher|greater|lower|change)|upwards?|within|until|"
    r"times(?=\s*\w)|twice|thrice|doubled?|tripled?|quadrupled?|halved|squared|cubed|factorial|"
    r"plus|minus|negative|(?:root|power|reciprocal|inverse|logarithm|square|cube|double|multiple|"
    r"half|third|quarter|fraction|percent|part)s? of|modulo|mod|log|ln|lg|sqrt|sin|cos|tan|exp|"
    r"dozens?|hundreds?|thousands?|millions?|billions?|trillions?|lakhs?|crores?|gross|"
    r"grand|bn|mn|tn|mil|mio|mrd|half|halves|fold|ish|"
    r"too (?:many|few|much|little)|tens|twos|threes|fours|fives|quintuple"
)
_SYMBOLS = (
    r"[≠≮≯∉¬✗✘❌!]|\\(?:ne|neq|neg|lnot|not|nless|ngtr|notin)(?![a-z])|n[’']t\b|"
    r"\b(?:ca|wo|is|are|was|were|does|do)nt\b|不|非|没|沒|無|无|别|勿|错|除了|除.{1,8}外|以外|之外|"
    r"排除|或|可能"
)
_BOUNDS = (
    r"[<>≤≥]|\\(?:le|ge|lt|gt|leq|geq|leqslant|geqslant|sqrt)(?![a-z])|至少|至多|最多|最少|超过|"
    r"大于|小于|多于|少于|高于|低于|以上|以下|以内|将近|接近|个半|半个|一半|负"
)
_NEGATED = re.compile(rf"\b(?:{_NEGATIONS}|{_OF_LETTERS})\b|{_SYMBOLS}", re.IGNORECASE)
_QUALIFIED = re.compile(rf"\b(?:{_NEGATIONS}|{_QUANTITIES})\b|{_SYMBOLS}|{_BOUNDS}", re.IGNORECASE)
_NO_UNIT = re.compile(
    rf"{_NEGATIONS}|more|less|fewer|plus|minus|tops|doubled|tripled|halved|squared|cubed|factorial|"
    r"dozens?|hundreds?|thousands?|millions?|billions?|trillions?|half|halves|quarters?|thirds?|"
    r"fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|fold|"
    r"ish|(?:min|max)imum|max|short|modulo|mod|score|lakhs?|crores?|"
    r"gross|grand|bn|mn|tn|mil|mio|mrd|tens|twos|threes|fours|fives",
    re.IGNORECASE,
)


def is_negated(text: str) -> bool:
    """True if words say that what stands between them is not, or not surely, the answer.

    >>> is_negated("The answer is C"), is_negated("anything but C"), is_negated("C is wrong")
    (False, True, True)
    """
    return _NEGATED.search(text) is not None


def is_qualified(text: str) -> bool:
    """True if the words around a number say that the answer is another one, or may be.

    >>> is_qualified("The total is 5 apples."), is_qualified("at least 5"), is_qualified("5 dozen")
    (False, True, True)
    """
    return _QUALIFIED.search(text) is not None


def qualifies(word: str) -> bool:
    """True if a word behind a number makes another number of it, and is not a unit."""
    return _NO_UNIT.fullmatch(word) is not None
