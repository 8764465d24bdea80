from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.config.rewards import default_rewards
from mmr1.rewards import CompositeReward, build_composite_reward
from mmr1.rewards.composite import (
    TooManyInvalidRewardsError,
    report_invalid,
    reward_stats,
)
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Status
from tests.faults import faults_told
from tests.rewards.helpers import item, sample, think


@pytest.fixture(scope="module")
def composite_reward() -> Iterator[CompositeReward]:
    with build_composite_reward(default_rewards(), ScoringConfig(timeout_s=1.0)) as built:
        yield built


def test_total_is_the_weighted_sum_and_components_are_unweighted(
    composite_reward: CompositeReward,
) -> None:
    right, shapeless, wrong = composite_reward.score(
        [item(think("4"), "4"), item("<answer>4</answer>", 4), item(think("5"), "4")]
    )
    assert (right.value, right.components) == (1.5, {"format": 1.0, "math": 1.0})
    assert (shapeless.value, shapeless.components) == (1.0, {"format": 0.0, "math": 1.0})
    assert (wrong.value, wrong.components) == (0.5, {"format": 1.0, "math": 0.0})


@pytest.mark.parametrize(("function", "workers"), [("math", 2), ("exact", 0)])
def test_what_algebra_needs_is_started_ahead_and_only_if_it_is_needed(
    function: str, workers: int
) -> None:
    functions = {"right": {"type": function}}
    with build_composite_reward(read_rewards(functions), ScoringConfig(workers=2)) as scorer:
        scorer.begin()
        for thread in threading.enumerate():
            if thread.name == "verifier":
                thread.join()
        assert len(scorer._pool.pids) == workers
        assert scorer.score([item(think("4"), "4")])[0].value == 1.0


def test_a_start_that_fails_ahead_is_told_by_the_first_answer_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MMR1_TEST", "a zygote that no other test has started")
    functions = {"math": {}}
    monkeypatch.setattr("mmr1.rewards.composite.Pool", partial(Pool, start_s=1e-6))
    config = read_rewards(functions), ScoringConfig()
    with build_composite_reward(*config) as scorer:
        scorer.begin()
        with pytest.raises(ValueError, match="no sign of life"):
            scorer.score([item(think(r"2\sqrt{3}"), r"\sqrt{12}")])


def test_no_answer_is_an_honest_zero_with_its_own_status(composite_reward: CompositeReward) -> None:
    (reward,) = composite_reward.score([item("<think>4</think>", "4")])
    assert (reward.value, reward.status) == (0.0, Status.NO_ANSWER)


def test_a_gold_that_cannot_be_read_is_nobodys_reward(composite_reward: CompositeReward) -> None:
    bad, good = composite_reward.score([item(think("1"), r"\frac{"), item(think("1"), "1")])
    assert (bad.value, bad.status, bad.components) == (
        None,
        Status.BAD_GOLD,
        {"format": 1.0, "math": None},
    )
    assert bad.error is not None
    assert bad.error.startswith("math: the gold answer")
    assert good.value == 1.5


def test_bad_golds_are_found_at_load(composite_reward: CompositeReward) -> None:
    samples = [sample(a) for a in (r"\frac{", "3", r"\sqrt 2", "", None, float("nan"), "Tuesday")]
    problems = [
        (bad_sample.answer, message) for bad_sample, message in composite_reward.check_gold(samples)
    ]
    assert [answer for answer, _ in problems[:3]] == [r"\frac{", "", None]
    assert len(problems) == 4  # and nan, which equals nothing


def test_a_closed_gate_leaves_the_rest_at_zero_and_unrun() -> None:
    functions = {
        "format": {"weight": 0.5, "gate": 1.0},
        "math": {},
    }
    with build_composite_reward(read_rewards(functions)) as gated:
        closed, opened = gated.score([item("<answer>4</answer>", r"\frac{"), item(think("4"), "4")])
    assert (closed.value, closed.components) == (0.0, {"format": 0.0, "math": 0.0})
    assert opened.value == 1.5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"type": "maths"}, "did you mean 'math'"),
        ({"type": "format", "tempalte": "boxed"}, "did you mean 'rewards.x.template'"),
    ],
)
def test_what_is_wrong_with_a_function_is_said_at_the_start(function: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_composite_reward(read_rewards({"x": function}))


def test_weights_are_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        read_rewards({"math": float("inf")})


def test_accounting(composite_reward: CompositeReward) -> None:
    items = [item(think("4"), "4"), item("no", "4"), item(think("1"), r"\frac{")]
    rewards = composite_reward.score(items)
    stats = reward_stats(rewards)
    assert stats["reward/mean"] == 0.75
    assert stats["rewards/math/mean"] == 0.5
    assert stats["reward/num_invalid"] == 1
    assert stats["rewards/math/num_invalid"] == 1
    assert stats["reward/num_bad_gold"] == 1
    assert stats["reward/num_no_answer"] == 1
    with faults_told() as told:
        report_invalid(rewards, [i.sample for i in items], 0.34)
    ((kind, count, message),) = told.faults
    assert (kind, count) == ("reward/math/bad_gold", 1)
    assert message.startswith("1 of 3 completions have no valid reward: math: ")
    with pytest.raises(TooManyInvalidRewardsError, match=r"1 of 3 .* sample 's1': math: the gold"):
        report_invalid(rewards, [i.sample for i in items], 0.3)
