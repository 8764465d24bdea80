"""The scores of question answering about documents, photographs and charts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from rapidfuzz.distance import Levenshtein

from mmr1.rewards.builtin.text import gold_strings
from mmr1.rewards.item import BadGoldError, no_answer, plain_value, unread
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.characters import fold_case, unwrap
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.quantities import Quantity, candidates, read_quantity, whole_quantity
from mmr1.rewards.reading.stance import MAX_ANSWER, Unread
from mmr1.rewards.reading.units import PERCENT
from mmr1.rewards.reading.words import with_digits
from mmr1.types import Reward

VOTES = 3  # so many of ten people make an answer wholly right
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s'.,:%$€£°/+-]|[.,:](?!\d)|(?<!\d)[.:](?=\s)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


@reward(
    "anls",
    paper="1905.13648",
    gold=gold_strings,
    tasks=("anls",),
    example={
        "completion": "<answer>Novmber 5</answer>",
        "answer": ["November 5", "5 November"],
        "reward": 0.9,
    },
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
    golds = gold_strings(answer)
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    if len(prediction) > MAX_ANSWER:
        return 0.0
    text = fold_case(unwrap(prediction))
    distance = min(Levenshtein.normalized_distance(text, fold_case(unwrap(g))) for g in golds)
    return 1.0 - distance if distance < threshold else 0.0


def people_of(answer: Any) -> Sequence[str]:
    """Return what people answered. Raises BadGoldError if the record has no list of it."""
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
    gold=people_of,
    tasks=("vqa soft",),
    example={
        "completion": "<answer>Two</answer>",
        "answer": ["2", "3", "3", "4", "4", "4", "5", "5", "5", "5"],
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
        answer: What ten people answered: texts, or mappings with ``answer``.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.

    >>> vqa_soft("<answer>Two</answer>", ["2", "2", "3"] * 3 + ["4"])
    1.0
    """
    people = [_normalised(text) for text in people_of(answer)]
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    if len(prediction) > MAX_ANSWER:
        return 0.0
    agreeing = people.count(_normalised(prediction))
    needed = min(VOTES, len(people))  # a single gold is met by one
    return min(1.0, agreeing / needed)


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
    prediction = extract_answer(completion, extract)
    if prediction is None:
        return no_answer()
    texts = [fold_case(unwrap(gold)) for gold in golds]
    if len(prediction) <= MAX_ANSWER and fold_case(unwrap(prediction)) in texts:
        return 1.0
    quantities = [quantity for gold in golds if (quantity := whole_quantity(gold)) is not None]
    reading = read_quantity(prediction) if quantities else None
    if isinstance(reading, Unread):
        return unread(reading.reason)
    share = Fraction(str(relative))
    return float(any(reading and _is_near(q, reading.value, share) for q in quantities))


def _is_near(gold: Quantity, answer: Quantity, relative: Fraction) -> bool:
    numbers = candidates(gold, answer)
    if answer.unit == PERCENT:  # charts leave the sign to their axis
        numbers.append(answer.number)
    bound = relative * abs(gold.value)
    return any(abs(number.value - gold.value) <= bound for number in numbers)


def _normalised(text: str) -> str:
    """An answer as VQAv2 compares it: in lower case, without articles and punctuation."""
    text = _PUNCTUATION.sub(" ", _THOUSANDS.sub("", with_digits(unwrap(text).casefold())))
    return " ".join(_ARTICLES.sub(" ", text).split())
