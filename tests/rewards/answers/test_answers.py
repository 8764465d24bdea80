"""Choice, numbers, text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.rewards import BadGoldError
from mmr1.rewards.builtin.choice import choice, gold_letter
from mmr1.rewards.builtin.numeric import count, gold_quantity, numeric, regression
from mmr1.rewards.builtin.text import exact, ocr, rouge
from mmr1.types import Reward, Status
from tests.rewards.helpers import think, value_of

OPTIONS = ["40°", "60°", "120°", "140°"]


@pytest.mark.parametrize(
    "answer",
    ["D", "(D)", "D.", "d", "[D]", "Option D", "option (d)", "D. 140°", "(D) 140°", "140°", "140",
     r"140^\circ", "The answer is D.", "**D**", "D: 140°", r"\boxed{D}", "Answer: D"],
)  # fmt: skip
def test_what_names_the_option(answer: str) -> None:
    assert choice(think(answer), "D", options=OPTIONS) == 1.0


@pytest.mark.parametrize(
    "answer",
    ["A", "C or D", "A, D", "D. 40°", "E", "40°", "", "all of them", "DD", "AD", "neither", "ABCD",
     "D" * 5000],
)  # fmt: skip
def test_what_does_not(answer: str) -> None:
    assert value_of(choice(think(answer), "D", options=OPTIONS)) == 0.0


@pytest.mark.parametrize(
    "gold", ["D", "(D)", "140°", "D. 140°", r"\boxed{D}", "<answer>D</answer>"]
)
def test_the_gold_may_be_a_letter_or_the_text(gold: str) -> None:
    assert choice(think("D"), gold, options=OPTIONS) == 1.0
    assert choice(think("C"), gold, choices=dict(zip("ABCD", OPTIONS, strict=True))) == 0.0


def test_labels_inside_the_options_are_no_text() -> None:
    assert choice(think("red"), "B", options=["A. blue", "B. red"]) == 1.0


def test_an_article_is_no_letter() -> None:
    assert choice(think("A cat sleeps in box B"), "B") == 1.0
    assert value_of(choice(think("A or B"), "A")) == 0.0


@pytest.mark.parametrize("gold", [None, "", "Z or Y", 7, "50°"])
def test_a_gold_that_is_no_option(gold: Any) -> None:
    with pytest.raises(BadGoldError, match="names none of the options"):
        gold_letter(gold, options=OPTIONS)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("42", 42.0), ("42.0", 42), ("1,234", "1234"), ("about 42 kg", 42), ("-3.5", -3.5),
     ("1e3", 1000), ("50%", 0.5), ("1/2", 0.5), ("$5", 5), ("The total is 12.", 12), (".5", 0.5)],
)  # fmt: skip
def test_equal_numbers(answer: str, gold: Any) -> None:
    assert numeric(think(answer), gold) == 1.0


@pytest.mark.parametrize(
    "answer",
    ["43", "nan", "inf", "42 or 43", "forty-three", "-42", "4 2", "42.1", "1e400", "42a7", "42%"],
)
def test_unequal_numbers(answer: str) -> None:
    assert value_of(numeric(think(answer), 42)) == 0.0


def test_tolerance_is_explicit() -> None:
    assert numeric(think("9.9"), 10, tolerance=0.1) == 1.0
    assert numeric(think("9.9"), 10, relative=0.01) == 1.0
    assert numeric(think("9.9"), 10, relative=0.009) == 0.0
    assert numeric(think("9.8"), 10, tolerance=0.1) == 0.0
    assert numeric(think("10.3"), 10, tolerance=0.3) == 1.0  # of no double
    assert numeric(think("11.5"), 10, relative=0.15) == 1.0


def test_a_kilogram_is_not_a_thousand() -> None:
    assert numeric(think("10千克"), 10) == 1.0
    assert numeric(think("10000"), "10千克") == 0.0
    assert numeric(think("3千"), 3000) == 1.0


@pytest.mark.parametrize("gold", [None, "", "many", math.nan, math.inf, True, [3], "3 or 4"])
def test_golds_that_are_no_number(gold: Any) -> None:
    with pytest.raises(BadGoldError):
        gold_quantity(gold)


def test_counting() -> None:
    assert [count(think(a), 3) for a in ("3", "3.0", "three", "There are Three.")] == [1.0] * 4
    assert [value_of(count(think(a), 3)) for a in ("4", "three or four", "3 or 4")] == [0.0] * 3


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [("10", 10, 1.0), ("9", 10, 0.9), ("12", 10, 0.8), ("25", 10, 0.0), ("-10", 10, 0.0),
     ("nan", 10, 0.0), ("inf", 10, 0.0), ("x", 10, 0.0), ("0", 0, 1.0), ("0.1", 0, 0.0)],
)  # fmt: skip
def test_regression(answer: str, gold: float, value: float) -> None:
    assert value_of(regression(think(answer), gold)) == pytest.approx(value)


def test_the_floor_of_regression_is_a_scale() -> None:
    assert regression(think("0.25"), 0, floor=1.0) == pytest.approx(0.75)


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_regression_is_between_0_and_1_and_1_only_when_exact(a: int, b: int) -> None:
    value = regression(think(str(a)), b)
    assert isinstance(value, float)
    assert 0.0 <= value <= 1.0
    assert (value == 1.0) == (a == b) or abs(a - b) < 1e-9 * abs(b)


def test_no_answer_has_its_status() -> None:
    for value in (count("3", 3), numeric("3", 3), exact("a", "a"), choice("B", "B")):
        assert value == Reward(0.0, Status.NO_ANSWER)


@pytest.mark.parametrize(
    ("predicted", "gold", "options", "value"),
    [
        ("the quick brown fox", "the quick brown fox", {}, 1.0),
        ("the quick brown", "the quick brown fox", {}, 0.75),
        ("the big quick brown fox", "the quick brown fox", {}, 0.75),
        ("THE quick brown fox", "the quick brown fox", {}, 0.75),
        ("THE quick brown fox", "the quick brown fox", {"ignore_case": True}, 1.0),
        ("quick, brown", "quick brown", {}, 0.5),
        ("quick, brown", "quick brown", {"ignore_punctuation": True}, 1.0),
        ("one two three four five six", "one", {}, 0.0),
        ("天地玄黄", "天地玄红", {}, 0.75),
        ("kitten", "sitting", {"unit": "character"}, 1 - 3 / 7),
    ],
)
def test_ocr(predicted: str, gold: str, options: dict[str, Any], value: float) -> None:
    assert ocr(think(predicted), gold, **options) == pytest.approx(value)


def test_rouge_by_hand() -> None:
    """gold: the cat sat on the mat (6); predicted: the cat lay on a mat (6); 4 words in common."""
    predicted, gold = think("the cat lay on a mat"), "the cat sat on the mat"
    assert rouge(predicted, gold, kind="1") == pytest.approx(4 / 6)
    assert rouge(predicted, gold, kind="2") == pytest.approx(1 / 5)  # "the cat"
    assert rouge(predicted, gold, kind="L") == pytest.approx(4 / 6)
    assert rouge(predicted, gold) == pytest.approx((4 / 6 + 1 / 5 + 4 / 6) / 3)


def test_rouge_does_not_pay_for_repeating() -> None:
    assert rouge(think("cat cat cat cat"), "cat", kind="1") == pytest.approx(2 / 5)


def test_exact_text() -> None:
    assert exact(think("New  York"), "New York") == 1.0
    assert exact(think("new york"), "New York") == 1.0
    assert exact(think("new york"), "New York", ignore_case=False) == 0.0
    assert exact(think("42"), 42) == 1.0
