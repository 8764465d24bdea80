"""Text against text: exact match, edit distance (OCR) and ROUGE."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from rapidfuzz.distance import LCSseq, Levenshtein

from mmr1.extras import needs_extra
from mmr1.rewards.item import BadGoldError, Job, no_answer, references
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.booleans import TRUTH, boolean_of
from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.stance import statements
from mmr1.types import Reward

Rouge = Literal["mean", "1", "2", "L"]
OcrUnit = Literal["auto", "word", "character"]
Tokens = tuple[str, ...]

CHEAP_CELLS = 4_000_000  # a larger table of tokens by tokens is compared in the sandbox

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ROUGE_TOKEN = re.compile(rf"{_CJK.pattern}|[^\W_]+?(?={_CJK.pattern}|[\W_]|$)")


def gold_strings(answer: Any) -> tuple[str, ...]:
    """The golds as texts. Raises BadGoldError when one is empty or no text."""
    return tuple(_gold_string(gold) for gold in references(answer))


def _gold_string(answer: Any) -> str:
    if not isinstance(answer, str | int | float):
        raise BadGoldError(f"the gold answer {answer!r:.60} is not text")
    text = extract_answer(str(answer), "whole")
    if text is None:
        raise BadGoldError("the gold answer is empty")
    return text


@reward(
    "exact",
    gold=gold_strings,
    tasks=("exact", "text"),
    example={
        "completion": "<answer>It is **New  York**.</answer>",
        "answer": "new york",
        "reward": 1,
    },
)
def exact(
    completion: str, answer: Any, *, ignore_case: bool = True, extract: Where = "auto"
) -> float | Reward:
    """1 where the answer is the gold text or one of several; else 0.

    Runs of whitespace are one space, and case, Markdown, quotation marks and a final stop do not
    count. A sentence that says what "it is" is what it says. A gold that is True is "true" or
    "yes", and of an answer that begins with yes or no the rest only explains it.

    Args:
        completion: The whole completion.
        answer: The gold text, or a list of texts of which any is right.
        ignore_case: Compare without case.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> exact("<answer>It is **New  York**.</answer>", "new york")
    1.0
    >>> exact("<answer>Yes, it is.</answer>", True), exact("<answer>not red</answer>", "red")
    (1.0, 0.0)
    """
    golds = gold_strings(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    return float(any(_same_text(gold, prediction, ignore_case) for gold in golds))


def _same_text(gold: str, prediction: str, ignore_case: bool) -> bool:
    gold, prediction = unwrap(gold), unwrap(prediction)
    if TRUTH.fullmatch(gold):
        return boolean_of(prediction) is boolean_of(gold)
    expected = _folded(gold, ignore_case, False)
    return expected in (_folded(text, ignore_case, False) for text in statements(prediction))


@reward(
    "ocr",
    gold=gold_strings,
    tasks=("ocr",),
    example={
        "completion": "<answer>the quick brown cat</answer>",
        "answer": "the quick brown fox",
        "reward": 0.75,
    },
)
def ocr(
    completion: str,
    answer: Any,
    *,
    unit: OcrUnit = "auto",
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    extract: Where = "auto",
) -> float | Reward | Job:
    """1 - word error rate, at least 0; character error rate for Chinese, Japanese and Korean.

    The error rate is the edit distance over the gold's length.

    Args:
        completion: The whole completion.
        answer: The gold text; of a list of texts the nearest counts.
        unit: ``word``, ``character``, or ``auto``: characters where the gold has CJK letters.
        ignore_case: Compare without case.
        ignore_punctuation: Compare without punctuation.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> ocr("<answer>the quick brown cat</answer>", "the quick brown fox")
    0.75
    """
    golds = gold_strings(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    pairs = tuple(
        _ocr_sides(prediction, gold, unit, ignore_case, ignore_punctuation) for gold in golds
    )
    if sum(_cells(*pair) for pair in pairs) > CHEAP_CELLS:
        return Job("mmr1.rewards.builtin.text:best_error_rate", (pairs,))
    return best_error_rate(pairs)


def _ocr_sides(
    prediction: str, gold: str, unit: OcrUnit, ignore_case: bool, ignore_punctuation: bool
) -> tuple[Tokens, Tokens]:
    by_character = unit == "character" or (unit == "auto" and _CJK.search(gold) is not None)
    sides = []
    for text in (prediction, gold):
        folded = _folded(text, ignore_case, ignore_punctuation)
        sides.append(tuple(folded.replace(" ", "")) if by_character else tuple(folded.split()))
    return sides[0], sides[1]


def _cells(predicted: Tokens, expected: Tokens) -> int:
    if abs(len(predicted) - len(expected)) >= len(expected):
        return 0  # every word of the difference is an error, so nothing is compared
    return len(predicted) * len(expected)


def best_error_rate(pairs: Sequence[tuple[Tokens, Tokens]]) -> float:
    """1 - edit distance / length of the gold, at least 0; the best of several golds."""
    return max(
        max(0.0, 1.0 - Levenshtein.distance(predicted, expected) / max(len(expected), 1))
        if _cells(predicted, expected)
        else float(predicted == expected)
        for predicted, expected in pairs
    )


@reward(
    "rouge",
    paper="Lin 2004",
    gold=gold_strings,
    tasks=("rouge", "free-form"),
    example={
        "completion": "<answer>a cat sat</answer>",
        "answer": "the cat sat down",
        "settings": {"kind": "1"},
        "reward": 4 / 7,
    },
)
def rouge(
    completion: str,
    answer: Any,
    *,
    kind: Rouge = "mean",
    stem: bool = False,
    extract: Where = "auto",
) -> float | Reward | Job:
    """ROUGE F1 of the answer and the gold text (Lin 2004).

    Args:
        completion: The whole completion.
        answer: The gold text; of a list of texts the best counts.
        kind: ``1`` and ``2`` for common words and pairs of words, ``L`` for the longest common
            subsequence, ``mean`` for the mean of the three.
        stem: Compare words of more than three letters by their stems (Porter 1980), so that "cats"
            is "cat". ``kind: mean`` with ``stem: true`` is the score of Video-R1's free-form
            reward, but for a few words that NLTK's stemmer treats apart, such as "lies". Needs
            ``pip install mmr1[stem]``.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> round(rouge("<answer>a cat sat</answer>", "the cat sat down", kind="1"), 4)
    0.5714
    """
    tokens = _stems if stem else _words
    golds = tuple(tokens(gold) for gold in gold_strings(answer))
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    predicted = tokens(prediction)
    if len(predicted) * sum(map(len, golds)) > CHEAP_CELLS:
        return Job("mmr1.rewards.builtin.text:best_rouge", (predicted, golds, kind))
    return best_rouge(predicted, golds, kind)


def _words(text: str) -> Tokens:
    return tuple(_ROUGE_TOKEN.findall(text.casefold()))


def _stems(text: str) -> Tokens:
    return tuple(_stem_of(word) if len(word) > 3 else word for word in _words(text))


@lru_cache(1 << 16)
def _stem_of(word: str) -> str:
    return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> Any:
    with needs_extra("stem", "rouge with stem=true"):
        from snowballstemmer import stemmer
    return stemmer("porter")


def best_rouge(predicted: Tokens, golds: Sequence[Tokens], kind: str) -> float:
    """The F1 of the gold that is nearest."""
    return max(rouge_f1(predicted, gold, kind) for gold in golds)


# Not by rouge-score: docs/decisions.md says why.
def rouge_f1(predicted: Tokens, expected: Tokens, kind: str) -> float:
    """The F1 of two token sequences."""
    if kind == "mean":
        return sum(rouge_f1(predicted, expected, k) for k in ("1", "2", "L")) / 3
    if kind == "L":
        return _f1(LCSseq.similarity(predicted, expected), len(predicted), len(expected))
    size = int(kind)
    grams = [
        Counter(zip(*(tokens[i:] for i in range(size)), strict=False))
        for tokens in (predicted, expected)
    ]
    return _f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total())


def _f1(common: int, predicted: int, expected: int) -> float:
    return 2 * common / (predicted + expected) if common else 0.0


def _folded(text: str, ignore_case: bool, ignore_punctuation: bool) -> str:
    text = unicodedata.normalize("NFC", text)
    if ignore_case:
        text = text.casefold()
    if ignore_punctuation:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
    return " ".join(text.split())
