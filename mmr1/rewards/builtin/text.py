"""Text against text: exact match, edit distances, ROUGE, and the scores of VQA and ChartQA."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, Literal

from rapidfuzz.distance import LCSseq, Levenshtein

from mmr1.extras import needs_extra
from mmr1.rewards.item import BadGoldError, plain_value, references, unread
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.booleans import TRUTH, boolean_of
from mmr1.rewards.reading.characters import fold_case, unwrap
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.quantities import Quantity, distances, read_quantity, whole_quantity
from mmr1.rewards.reading.read import score_answer
from mmr1.rewards.reading.stance import MAX_ANSWER, Unread, statements
from mmr1.rewards.reading.units import PERCENT
from mmr1.rewards.reading.words import with_digits
from mmr1.types import Reward

Rouge = Literal["mean", "1", "2", "L"]
OcrUnit = Literal["auto", "word", "character"]
Tokens = tuple[str, ...]

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ROUGE_TOKEN = re.compile(rf"{_CJK.pattern}|[^\W_]+?(?={_CJK.pattern}|[\W_]|$)")

VOTES = 3  # so many of ten people make an answer wholly right
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s'.,:%$€£°/+-]|[.,:](?!\d)|(?<!\d)[.:](?=\s)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


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
        "completion": "<answer>It is **New York**.</answer>",
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
        answer: The gold text, or yes or no; of a list of texts any is right.
        ignore_case: Compare without case.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> exact("<answer>It is **New  York**.</answer>", "new york")
    1.0
    >>> exact("<answer>Yes, it is.</answer>", True), exact("<answer>not red</answer>", "red")
    (1.0, 0.0)
    """
    golds = [unwrap(gold) for gold in gold_strings(answer)]

    def score(text: str) -> float:
        said = [_folded(statement, ignore_case) for statement in statements(text)]
        return float(
            any(
                boolean_of(text) is boolean_of(gold)
                if TRUTH.fullmatch(gold)
                else _folded(gold, ignore_case) in said
                for gold in golds
            )
        )

    return score_answer(completion, extract, unwrap, score)


@reward(
    "ocr",
    gold=gold_strings,
    tasks=("ocr",),
    example={
        "completion": "<answer>the quick cat</answer>",
        "answer": "the quick dog",
        "reward": 2 / 3,
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
) -> float | Reward:
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

    def score(text: str) -> float:
        folded = [_folded(t, ignore_case, ignore_punctuation) for t in (text, *golds)]
        return max(_accuracy(folded[0], gold, unit) for gold in folded[1:])

    return score_answer(completion, extract, str, score)


def _accuracy(text: str, gold: str, unit: OcrUnit) -> float:
    by_character = unit == "character" or (unit == "auto" and _CJK.search(gold) is not None)
    sides = [side.replace(" ", "") if by_character else side.split() for side in (text, gold)]
    length = max(len(sides[1]), 1)
    return 1.0 - min(Levenshtein.distance(*sides, score_cutoff=length), length) / length


@reward(
    "rouge",
    paper="Lin 2004",
    gold=gold_strings,
    tasks=("rouge", "free-form"),
    example={
        "completion": "<answer>a cat</answer>",
        "answer": "the cat",
        "reward": (0.5 + 0 + 0.5) / 3,
    },
)
def rouge(
    completion: str,
    answer: Any,
    *,
    kind: Rouge = "mean",
    stem: bool = False,
    extract: Where = "auto",
) -> float | Reward:
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
    golds = [tokens(gold) for gold in gold_strings(answer)]
    return score_answer(
        completion, extract, tokens, lambda words: max(rouge_f1(words, g, kind) for g in golds)
    )


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


# Not by rouge-score: docs/architecture.md says why.
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


def _folded(text: str, ignore_case: bool, ignore_punctuation: bool = False) -> str:
    text = unicodedata.normalize("NFC", text)
    if ignore_case:
        text = text.casefold()
    if ignore_punctuation:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
    return " ".join(text.split())


@reward(
    "anls",
    paper="1905.13648",
    gold=gold_strings,
    tasks=("anls",),
    example={"completion": "<answer>Novmber 5</answer>", "answer": "November 5", "reward": 0.9},
)
def anls(
    completion: str, answer: Any, *, threshold: float = 0.5, extract: Where = "auto"
) -> float | Reward:
    """ANLS, the score of DocVQA and ST-VQA: 1 - the normalised edit distance, best over the golds.

    The distance is divided by the longer text's length; at the threshold or beyond it the score
    is 0. Case and runs of whitespace do not count. Biten et al. 2019, arXiv:1905.13648.

    Args:
        completion: The whole completion.
        answer: The gold text, or a list of texts.
        threshold: Normalised distance from which on an answer is wrong.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> round(anls("<answer>Novmber 5</answer>", ["November 5", "5 November"]), 2)
    0.9
    """
    golds = [fold_case(unwrap(gold)) for gold in gold_strings(answer)]

    def score(text: str) -> float:
        distance = min(Levenshtein.normalized_distance(fold_case(text), gold) for gold in golds)
        return 1.0 - distance if distance < threshold else 0.0

    return score_answer(completion, extract, unwrap, score)


def gold_votes(answer: Any) -> Sequence[str]:
    """Return people's answers. Raises BadGoldError when the record has no list of them."""
    answer = plain_value(answer)
    if isinstance(answer, list | tuple) and answer:
        texts = [a.get("answer") if isinstance(a, Mapping) else a for a in answer]
        if all(isinstance(text, str | int | float) for text in texts):
            return [str(text) for text in texts]
        raise BadGoldError(f"the gold answers {answer!r:.60} are not texts")
    return gold_strings(answer)


@reward(
    "vqa_soft",
    paper="1505.00468",
    gold=gold_votes,
    tasks=("vqa soft",),
    example={
        "completion": "<answer>Two</answer>",
        "answer": ["2", *"3344455555"[:9]],
        "reward": 1 / 3,
    },
)
def vqa_soft(completion: str, answer: Any, *, extract: Where = "auto") -> float | Reward:
    """The soft score of VQAv2, OK-VQA and TextVQA: a third for each of ten people who say the same.

    At most 1. Case, articles, punctuation and words for numbers do not count. The benchmarks'
    own figure is the mean over ten sets of nine people: 0.3, 0.6, 0.9 where this is 1/3, 2/3, 1.
    Antol et al. 2015, arXiv:1505.00468.

    Args:
        completion: The whole completion.
        answer: Answers of ten people: texts, or mappings with ``answer``.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> vqa_soft("<answer>Two</answer>", ["2", "2", "3"] * 3 + ["4"])
    1.0
    """
    people = [_normalised(text) for text in gold_votes(answer)]
    needed = min(VOTES, len(people))  # a single gold is met by one
    return score_answer(
        completion, extract, _normalised, lambda text: min(1.0, people.count(text) / needed)
    )


@reward(
    "relaxed",
    paper="2203.10244",
    gold=gold_strings,
    tasks=("relaxed",),
    example={"completion": "<answer>1,060</answer>", "answer": 1000, "reward": 0},
)
def relaxed(
    completion: str, answer: Any, *, relative: float = 0.05, extract: Where = "auto"
) -> float | Reward:
    """The relaxed accuracy of ChartQA: 1 where a number is within 5% of the gold, else 0.

    A text must be the gold text, whatever its case. Thousands separators and signs of currency do
    not count. 23% is met by 23 and by 0.23, and 0.23 and 23 by 23%: charts leave the sign to their
    axis. Masry et al. 2022, arXiv:2203.10244.

    Args:
        completion: The whole completion.
        answer: The gold text or number, or a list of texts.
        relative: Largest difference as a share of the gold's magnitude.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> relaxed("<answer>1,020</answer>", 1000), relaxed("<answer>1,060</answer>", 1000)
    (1.0, 0.0)
    """
    golds = gold_strings(plain_value(answer))
    texts = [fold_case(unwrap(gold)) for gold in golds]
    quantities = [quantity for gold in golds if (quantity := whole_quantity(gold)) is not None]

    def score(text: str) -> float | Reward:
        if fold_case(unwrap(text)) in texts or not quantities:
            return float(fold_case(unwrap(text)) in texts)
        reading = read_quantity(text)
        if isinstance(reading, Unread):
            return unread(reading.reason)
        answers = [reading.value]
        if reading.value.unit == PERCENT:  # charts leave the sign to their axis
            answers.append(Quantity(reading.value.number))
        return float(
            any(_is_near(q, a, Fraction(str(relative))) for q in quantities for a in answers)
        )

    return score_answer(completion, extract, str, score)


def _is_near(gold: Quantity, answer: Quantity, relative: Fraction) -> bool:
    return any(distance <= relative * abs(gold.value) for distance in distances(gold, answer))


def _normalised(text: str) -> str:
    """An answer as VQAv2 compares it: in lower case, without articles and punctuation."""
    text = _PUNCTUATION.sub(
        " ", _THOUSANDS.sub("", with_digits(unwrap(text[:MAX_ANSWER]).casefold()))
    )
    return " ".join(_ARTICLES.sub(" ", text).split())
