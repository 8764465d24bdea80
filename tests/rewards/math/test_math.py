from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import BadGoldError, CompositeReward, Job, build_composite_reward
from mmr1.rewards.math.equality import decide, gold_text
from mmr1.rewards.reading.numbers import parse_number, same_number
from mmr1.types import Status
from tests.rewards.helpers import item, think, value_of
from tests.rewards.math.math_cases import PAIRS


@pytest.fixture(scope="module")
def scorer() -> Iterator[CompositeReward]:
    parts = {"math": {}}
    with build_composite_reward(read_rewards(parts), ScoringConfig(timeout_s=60.0)) as built:
        yield built


def test_verdict_suite(scorer: CompositeReward) -> None:
    """Every case written from mathematics."""
    rewards = scorer.score([item(think(answer), gold) for _, gold, answer, _ in PAIRS])
    expected = [0.0 if not answer.strip() else value for _, _, answer, value in PAIRS]
    misses = {
        (gold, answer)
        for (_, gold, answer, _), value, reward in zip(PAIRS, expected, rewards, strict=True)
        if reward.value != value
    }
    assert misses == set()


def test_the_suite_asks_both_questions_of_every_category() -> None:
    for expected in (1.0, 0.0):
        assert len({category for category, _, _, value in PAIRS if value == expected}) >= 15


def test_the_gold_comes_first(scorer: CompositeReward) -> None:
    """With the arguments reversed, math-verify takes 0 for a + 3z = 0."""
    (reward,) = scorer.score([item(think("0"), "a+3z=0")])
    assert reward.value == 0.0


def test_a_number_in_the_thinking_is_not_graded(scorer: CompositeReward) -> None:
    completions = ["<think>It is 42.</think>", "<think>42</think><answer>41</answer>"]
    none, wrong = scorer.score([item(text, "42") for text in completions])
    assert (none.value, none.status) == (0.0, Status.NO_ANSWER)
    assert (wrong.value, wrong.status) == (0.0, Status.OK)


def test_no_completion_is_paid_for_a_gold_that_cannot_be_read(scorer: CompositeReward) -> None:
    prose = "See figure (b) above, where x is drawn {"
    rewards = scorer.score([item(think(text), prose) for text in ("1", "x", "see figure")])
    assert {r.status for r in rewards} == {Status.BAD_GOLD}


@pytest.mark.parametrize("gold", [None, "", " ", float("nan"), float("inf"), [1], {"a": 1}])
def test_golds_that_are_none(gold: object) -> None:
    with pytest.raises(BadGoldError):
        gold_text(gold)


def test_an_answer_of_a_megabyte_costs_nothing(scorer: CompositeReward) -> None:
    answers = ["9" * 1_000_000, r"\frac{" * 150_000, "1+" * 500_000, " " * 999_999 + "7"]
    rewards = scorer.score([item(think(answer), "7") for answer in answers])
    assert [reward.value for reward in rewards] == [0.0, 0.0, 0.0, 1.0]


def test_names_that_are_no_variables_do_not_reach_sympy(scorer: CompositeReward) -> None:
    attack = r"\mathrm{__import__('os').system('true')} + 1"
    (reward,) = scorer.score([item(think(attack), "x+1")])
    assert reward.value == 0.0


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_compared_exactly(a: Fraction, b: Fraction) -> None:
    written = rf"\frac{{{b.numerator}}}{{{b.denominator}}}"
    verdict = decide(f"{a.numerator}/{a.denominator}", written)
    assert verdict == float(a == b)


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_a_decimal_is_its_fraction(digits: int, places: int) -> None:
    sign, body = ("-" if digits < 0 else ""), str(abs(digits)).zfill(places + 1)
    written = f"{sign}{body[: len(body) - places]}.{body[len(body) - places :]}"
    number = parse_number(written.rstrip("."))
    assert number is not None
    assert number.value == Fraction(digits, 10**places)


@given(st.integers(0, 10**9))
def test_thousands_separators_change_nothing(number: int) -> None:
    assert decide(str(number), f"{number:,}") == 1.0
    assert decide(f"{number:,}.50", str(number)) == 0.0


@given(st.text(max_size=60), st.text(max_size=60))
def test_every_pair_of_texts_has_a_verdict_or_a_job(gold: str, answer: str) -> None:
    verdict = decide(gold, answer)
    assert isinstance(verdict, Job) or value_of(verdict) in (0.0, 1.0)


def test_tolerance_is_relative_for_tiny_values() -> None:
    a, b = parse_number("1e-7"), parse_number("2e-7")
    assert a is not None
    assert b is not None
    assert not same_number(a, b)
    assert same_number(a, parse_number("0.0000001") or b)
