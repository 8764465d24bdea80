"""What the words around an answer say about it: that it is wrong, a bound, part of another quantity.

Words around an answer are accepted where they say nothing about it, as in "The total is 5 apples".
"Not 5", "at least 5", "5 is wrong" and "5 squared" are other answers than 5.
"""

from __future__ import annotations

import re

_NEGATIONS = (
    r"not|no|never|none|neither|nor|cannot|nothing|without|except|excepting|excluding|excludes?|"
    r"excluded|besides|but|other than|rather than|instead|aside|apart|unlike|contrary|opposite|"
    r"far from|anything|everything|all of|any of|all other|every other|others|wrong(?:ly)?|"
    r"incorrect(?:ly)?|false|untrue|invalid|impossible|unlikely|improbable|mistake\w*|errors?|"
    r"erroneous|rul(?:e|ed|ing) out|rule [\w ]{1,20} out|eliminat\w+|reject\w*|discard\w*|"
    r"dismiss\w*|avoid\w*|refus\w+|den(?:y|ies|ied)|doubt\w*|disagree\w*|myth|distractors?|hardly|"
    r"barely|scarcely|fails?|inaccurate|implausible|unsure|uncertain|refut\w+|disprov\w+|"
    r"contradict\w*|inconsistent|lacks?|miss(?:es|ing)?|or|either|maybe|perhaps|possibly|if|unless|"
    r"though|although|however|versus|vs|before|after|than|between|next to"
)
_QUANTITIES = (
    r"at least|at most|at minimum|at maximum|more|less|fewer|greater|larger|smaller|bigger|higher|"
    r"lower|exceed\w*|surpass\w*|up to|as (?:many|much|few|little) as|min|max|minimum|maximum|upper|"
    r"bound(?:ed)?|limit|beyond|almost|nearly|close to|near|short of|shy of|"
    r"(?:under|over|below|above)(?=\s*[-+$\d])|(?:and|so) (?:over|under|above|below|up|change)|"
    r"upwards?|within|until|times|twice|thrice|doubled?|tripled?|quadrupled?|halved|squared|cubed|"
    r"factorial|plus|minus|negative|power|root|reciprocal|inverse|logarithm|modulo|mod|log|ln|lg|"
    r"sqrt|sin|cos|tan|exp|dozens?|score|hundreds?|thousands?|millions?|billions?|trillions?|half|"
    r"halves|thirds?|quarters?|fourths?|fifths?|tenths?|hundredths?|thousandths?|fold|ish|divided|"
    r"multiplied|added|subtracted|increased|decreased|remainder|odd|some"
)
_SYMBOLS = (
    r"[≠≮≯∉¬✗✘❌!]|\\(?:ne|neq|neg|lnot|not|nless|ngtr|notin)(?![a-z])|n[’']t\b|"
    r"\b(?:ca|wo|is|are|was|were|does|do)nt\b|不|非|没|沒|無|无|未|别|勿|错|错误|除|以外|之外|排除|或|"
    r"可能|并非"
)
_MORE_SYMBOLS = (
    r"[<>≤≥]|\\(?:le|ge|lt|gt|leq|geq|leqslant|geqslant|sqrt)(?![a-z])|至少|至多|最多|最少|超过|"
    r"大于|小于|多于|少于|高于|低于|以上|以下|以内|将近|接近|倍|半|负|平方根|立方根"
)
_NEGATED = re.compile(rf"\b(?:{_NEGATIONS})\b|{_SYMBOLS}", re.IGNORECASE)
_QUALIFIED = re.compile(
    rf"\b(?:{_NEGATIONS}|{_QUANTITIES})\b|{_SYMBOLS}|{_MORE_SYMBOLS}", re.IGNORECASE
)
_SCALING = re.compile(rf"(?:{_QUANTITIES})", re.IGNORECASE)


def is_negated(text: str) -> bool:
    """Whether the words say that what stands between them is not, or not surely, the answer.

    >>> is_negated("The answer is C"), is_negated("anything but C"), is_negated("C is wrong")
    (False, True, True)
    """
    return _NEGATED.search(text) is not None


def is_qualified(text: str) -> bool:
    """Whether the words around a number say that the answer is another one, or may be.

    >>> is_qualified("The total is 5 apples."), is_qualified("at least 5"), is_qualified("5 dozen")
    (False, True, True)
    """
    return _QUALIFIED.search(text) is not None


def qualifies(word: str) -> bool:
    """Whether a word behind a number makes another number of it, and is no unit."""
    return _NEGATED.fullmatch(word) is not None or _SCALING.fullmatch(word) is not None
