"""Scores against several people's answers."""

from __future__ import annotations

from typing import Any

import pytest

from mmr1.rewards import BadGoldError
from mmr1.rewards.builtin.math import math
from mmr1.rewards.builtin.numeric import count, numeric
from mmr1.rewards.builtin.text import anls, exact, gold_votes, ocr, relaxed, rouge, vqa_soft
from mmr1.rewards.item import references
from mmr1.types import Reward, Status
from tests.rewards.helpers import think, value_of


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        ("5 November", ["5 november"], 1.0),
        ("Novmber 5", ["November 5"], 1 - 1 / 10),  # one letter of ten
        ("abcd", ["abxx"], 0.0),  # a half is wrong
        ("abcde", ["abcxx"], 1 - 2 / 5),
        ("kitten", ["dog", "sitting"], 1 - 3 / 7),
        ("", ["x"], 0.0),
        ("x" * 5000, ["x"], 0.0),
        ("PARIS", "Paris", 1.0),
    ],
)
def test_anls(answer: str, golds: Any, value: float) -> None:
    got = anls(think(answer), golds)
    assert (got.value if isinstance(got, Reward) else got) == pytest.approx(value)


def test_the_threshold_of_anls() -> None:
    assert anls(think("abcd"), "abxx", threshold=0.6) == 0.5
    assert anls(think("abcd"), "abcx", threshold=0.2) == 0.0


PEOPLE = ["yes"] * 2 + ["no"] * 5 + ["the dog", "2", "surfing."]


@pytest.mark.parametrize(
    ("answer", "value"),
    [("No", 1.0), ("yes", 2 / 3), ("dog", 1 / 3), ("A dog.", 1 / 3), ("two", 1 / 3),
     ("Surfing", 1 / 3), ("cat", 0.0), ("not", 0.0), ("yes no", 0.0)],
)  # fmt: skip
def test_each_of_ten_people_gives_a_third(answer: str, value: float) -> None:
    assert vqa_soft(think(answer), PEOPLE) == pytest.approx(value)
    rows = [{"answer": said, "answer_confidence": "yes", "answer_id": 1} for said in PEOPLE]
    assert vqa_soft(think(answer), rows) == pytest.approx(value)


def test_a_single_person_is_enough_where_there_is_one() -> None:
    assert vqa_soft(think("Cat"), "cat") == 1.0
    assert vqa_soft(think("Cat"), ["cat", "dog"]) == 0.5


@pytest.mark.parametrize("gold", [None, [], [None], {"a": 1}, ""])
def test_golds_of_nobody(gold: Any) -> None:
    with pytest.raises(BadGoldError):
        gold_votes(gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("1,020", 1000), ("1020", "1,000"), ("$1,000", "1000"), ("23", "23%"), ("23%", "23%"),
     ("0.23", "23%"), ("23%", 0.23), ("23%", "23"), ("24", "23%"), ("yes", "Yes"), ("0", "0"),
     ("New York", "new york"), ("-9.6", -10), ("about 98", 100), ("3 million", 3000000)],
)  # fmt: skip
def test_relaxed_pays(answer: str, gold: Any) -> None:
    assert relaxed(think(answer), gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("1,060", 1000), ("1.02", "1000"), ("24.2", "23%"), ("2.3", "23%"), ("0.1", "0"), ("9.6", -10),
     ("no", "Yes"), ("Q4 2019", "Q3 2019"), ("not 100", 100), ("more than 100", 100),
     ("100 or 200", 100), ("2019", "Q3 2019"), ("nan", 1), ("100 km", "100 m")],
)  # fmt: skip
def test_relaxed_does_not_pay(answer: str, gold: Any) -> None:
    assert value_of(relaxed(think(answer), gold)) == 0.0


def test_any_of_several_golds() -> None:
    golds = ["7", "seven"]
    assert references(str(golds)) == references(golds) == ("7", "seven")
    for gold in (golds, str(golds)):
        for answer in ("7", "seven", "Seven"):
            assert [f(think(answer), gold) for f in (math, exact, count, numeric)] == [1.0] * 4
        assert math(think("8"), gold) == count(think("8"), gold) == 0.0
    assert ocr(think("the red cat"), ["a dog", "the red cat sat"]) == 0.75
    assert rouge(think("a cat"), ["the dog", "a cat"]) == 1.0


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[0, 1)", "['a']b", "['a', 1]", "[x]", "['unclosed]", "['a' 'b'", "[[1]]"]
)
def test_mathematics_in_brackets_is_one_gold(text: str) -> None:
    assert references(text) == (text,)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("Yes", "yes"), ("TRUE", "True"), ("yes", True), ("No", False), ("false", False)],
)  # fmt: skip
def test_booleans_and_names_are_met_in_any_case(answer: str, gold: Any) -> None:
    assert exact(think(answer), gold) == math(think(answer), gold) == 1.0


def test_a_boolean_is_not_met_by_the_other() -> None:
    for answer, gold in (("yes", False), ("no", True), ("1", True), ("true", False)):
        assert exact(think(answer), gold) == value_of(math(think(answer), gold)) == 0.0


def test_numbers_of_other_libraries_and_single_precision() -> None:
    numpy = pytest.importorskip("numpy")
    for gold in (numpy.float32(0.1), float(numpy.float32(0.1)), numpy.float64(0.1)):
        assert numeric(think("0.1"), gold) == 1.0
        assert math(think("0.1"), gold) == 1.0
    assert count(think("3"), numpy.int64(3)) == 1.0
    assert numeric(think("0.1"), 0.1000000001) == 0.0
    assert numeric(think("1048575.9"), 1048575.9375) == 0.0  # a double of few digits stays


def test_no_answer() -> None:
    for function in (anls, vqa_soft, relaxed):
        assert function("cat", "cat") == Reward(0.0, Status.NO_ANSWER)


def test_rouge_by_stems_is_rouge_score() -> None:
    """Video-R1 scores free text by rouge-score with stems, the mean of three F1."""
    pytest.importorskip("snowballstemmer", reason="pip install mmr1[stem]")
    scorers = pytest.importorskip("rouge_score.rouge_scorer", reason="pip install rouge-score")
    scorer = scorers.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    pairs = [
        ("The man is running quickly along the beaches", "a man ran along a beach quickly"),
        ("Two dogs are playing with balls", "The dog plays with the ball"),
        ("she opened it", "She opens the box, and closes it."),
    ]
    for predicted, gold in pairs:
        theirs = scorer.score(gold, predicted)
        assert rouge(think(predicted), gold, kind="1", stem=True) == pytest.approx(
            theirs["rouge1"].fmeasure
        )
        mean = sum(score.fmeasure for score in theirs.values()) / 3
        assert rouge(think(predicted), gold, stem=True) == pytest.approx(mean)
    assert rouge(think("dogs"), "dog", kind="1", stem=True) == 1.0
    assert rouge(think("dogs"), "dog", kind="1") == 0.0
