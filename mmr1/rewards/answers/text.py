"""Text against text: exact match, edit distance (OCR) and ROUGE."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Any, Literal, get_args

from rapidfuzz.distance import LCSseq, Levenshtein

from mmr1.rewards.extract import Where, extract_answer
from mmr1.rewards.item import BadGoldError, Job, no_answer
from mmr1.types import Reward

Rouge = Literal["mean", "1", "2", "L"]
OcrUnit = Literal["auto", "word", "character"]

CHEAP_CELLS = 4_000_000  # a larger table of tokens by tokens is compared in the sandbox

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ROUGE_TOKEN = re.compile(rf"{_CJK.pattern}|[^\W_]+?(?={_CJK.pattern}|[\W_]|$)")


def exact(
    completion: str, answer: Any, *, ignore_case: bool = False, extract: Where = "auto"
) -> float | Reward:
    """1 where the answer is the gold text, runs of whitespace being one space; else 0.

    >>> exact("<answer>New  York</answer>", "New York"), exact("<answer>york</answer>", "York")
    (1.0, 0.0)
    """
    gold = gold_string(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    return float(_folded(prediction, ignore_case, False) == _folded(gold, ignore_case, False))


def ocr(
    completion: str,
    answer: Any,
    *,
    unit: OcrUnit = "auto",
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    extract: Where = "auto",
) -> float | Reward | Job:
    """1 - word error rate, clipped at 0; character error rate for Chinese, Japanese and Korean.

    The error rate is the edit distance over the gold's length.

    Args:
        completion: The whole completion.
        answer: The gold text.
        unit: ``word``, ``character``, or ``auto``: characters where the gold has CJK letters.
        ignore_case: Compare without case.
        ignore_punctuation: Compare without punctuation.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> ocr("<answer>the quick brown cat</answer>", "the quick brown fox")
    0.75
    """
    if unit not in get_args(OcrUnit):
        raise ValueError(f"unit={unit!r}: known are {', '.join(get_args(OcrUnit))}")
    gold = gold_string(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    by_character = unit == "character" or (unit == "auto" and _CJK.search(gold) is not None)
    sides = []
    for text in (prediction, gold):
        folded = _folded(text, ignore_case, ignore_punctuation)
        sides.append(tuple(folded.replace(" ", "")) if by_character else tuple(folded.split()))
    predicted, expected = sides
    if abs(len(predicted) - len(expected)) >= len(expected):
        return float(predicted == expected)  # every word of the difference is an error
    if len(predicted) * len(expected) > CHEAP_CELLS:
        return Job("mmr1.rewards.answers.text:error_rate_reward", (predicted, expected))
    return error_rate_reward(predicted, expected)


def error_rate_reward(predicted: tuple[str, ...], expected: tuple[str, ...]) -> float:
    """1 - edit distance / len(expected), at least 0."""
    return max(0.0, 1.0 - Levenshtein.distance(predicted, expected) / len(expected))


def rouge(
    completion: str, answer: Any, *, kind: Rouge = "mean", extract: Where = "auto"
) -> float | Reward | Job:
    """ROUGE F1 of the answer and the gold text (Lin 2004).

    Args:
        completion: The whole completion.
        answer: The gold text.
        kind: ``1`` and ``2`` for common words and pairs of words, ``L`` for the longest common
            subsequence, ``mean`` for the mean of the three.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> round(rouge("<answer>a cat sat</answer>", "the cat sat down", kind="1"), 4)
    0.5714
    """
    if str(kind) not in get_args(Rouge):
        raise ValueError(f"kind={kind!r}: known are {', '.join(get_args(Rouge))}")
    gold = gold_string(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    predicted = tuple(_ROUGE_TOKEN.findall(prediction.casefold()))
    expected = tuple(_ROUGE_TOKEN.findall(gold.casefold()))
    if len(predicted) * len(expected) > CHEAP_CELLS:
        return Job("mmr1.rewards.answers.text:rouge_f1", (predicted, expected, str(kind)))
    return rouge_f1(predicted, expected, str(kind))


# Not by rouge-score: docs/decisions.md says why.
def rouge_f1(predicted: tuple[str, ...], expected: tuple[str, ...], kind: str) -> float:
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


def text_gold(answer: Any) -> None:
    """Raises BadGoldError when the gold is no text."""
    gold_string(answer)


def gold_string(answer: Any) -> str:
    """The gold as text. Raises BadGoldError when it is empty or no text."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise BadGoldError(f"the gold answer {answer!r:.60} is no text")
    text = extract_answer(str(answer), "whole")
    if text is None:
        raise BadGoldError("the gold answer is empty")
    return text


def _folded(text: str, ignore_case: bool, ignore_punctuation: bool) -> str:
    text = unicodedata.normalize("NFC", text)
    if ignore_case:
        text = text.casefold()
    if ignore_punctuation:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
    return " ".join(text.split())
