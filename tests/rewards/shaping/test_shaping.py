"""Length, repetition, steps, temporal contrast, auto."""

from __future__ import annotations

from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import BadGoldError, RewardItem, build_composite_reward
from mmr1.rewards.builtin.shaping import (
    length_bonus,
    length_cosine,
    overlong,
    repetition,
    split_steps,
    step_rewards,
    steps,
)
from mmr1.types import Reward, Status
from tests.rewards.helpers import item, think


def score(functions: dict[str, dict[str, Any]], items: list[RewardItem]) -> list[Reward]:
    with build_composite_reward(read_rewards(functions), ScoringConfig(timeout_s=5.0)) as scorer:
        return scorer.score(items)


@pytest.mark.parametrize(
    ("length", "value"), [(0, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (10_000, -1.0)]
)
def test_overlong_stops_at_minus_1(length: int, value: float) -> None:
    assert overlong("x", list(range(length)) or [0], max_length=100, buffer=20) == value


@pytest.mark.parametrize(
    ("accuracy", "length", "value"),
    [(1.0, 100, 0.5), (1.0, 50, 0.75), (1.0, 500, 0.5), (0.0, 100, -0.5), (0.0, 900, -0.5)],
)
def test_the_cosine_stays_at_its_end(accuracy: float, length: int, value: float) -> None:
    assert length_cosine("x", accuracy, range(length), max_length=100) == pytest.approx(value)


def test_the_cosine_at_length_0() -> None:
    assert length_cosine("", 1.0, [], max_length=100) == 1.0
    assert length_cosine("", 0.0, [], max_length=100) == -1.0


def test_repetition_counts_token_ngrams() -> None:
    assert repetition("x", [1, 2, 3, 4, 5, 6]) == 0.0
    assert repetition("x", [1] * 103, ngram=4) == pytest.approx(-0.99)
    assert repetition("x", [1, 2], ngram=4) == 0.0
    assert repetition("x", [7, 8] * 50, ngram=2, penalty=-0.5) == pytest.approx(-0.5 * 97 / 99)


def test_tokens_are_counted_and_not_characters() -> None:
    (reward,) = score({"overlong": {"max_length": 9, "buffer": 3}}, [item("text")])
    assert reward.status is Status.ERROR
    assert "token_ids" in (reward.error or "")


def test_the_length_reward_uses_another_function() -> None:
    functions = {
        "accuracy": {"type": "count"},
        "length": {"type": "length_cosine", "of": "accuracy", "max_length": 10},
    }
    tokens = tuple(range(10))
    rewards = score(functions, [item(think(a), 3, token_ids=tokens) for a in ("3", "4")])
    assert [reward.components["length"] for reward in rewards] == [0.5, -0.5]


def test_the_length_bonus_counts_the_right_answers_of_its_group() -> None:
    options = {"of": "accuracy", "min_length": 2, "max_length": 4}
    functions = {"accuracy": {"type": "count"}, "length_bonus": options}
    answers = [("3", 2, 0), ("3", 9, 0), ("4", 3, 0), ("3", 3, 1), ("4", 3, 1)]
    items = [item(think(a), 3, token_ids=tuple(range(n)), group=g) for a, n, g in answers]
    rewards = score(functions, items)
    assert [r.components["length_bonus"] for r in rewards] == [0.2, 0.0, 0.0, 0.0, 0.0]


def test_a_derived_reward_makes_its_own_accuracy() -> None:
    functions = {"length_cosine": {"of": "count", "max_length": 10}}
    (reward,) = score(functions, [item(think("3"), 3, token_ids=tuple(range(10)))])
    assert reward.value == 0.5


def test_no_accuracy_no_length_reward() -> None:
    functions = {"length_cosine": {"of": "count", "max_length": 10}}
    (reward,) = score(functions, [item(think("3"), "many", token_ids=(1,))])
    assert reward.status is Status.BAD_GOLD


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"length_cosine": {}}, "max_length' is missing"),
        ({"overlong": {"max_length": 4}}, "buffer' is missing"),
        ({"length_cosine": {"max_length": 4, "of": "acc"}}, "neither a reward before"),
        ({"auto": {"settings": {"box": {}}}}, "no task is scored by 'box'"),
        ({"auto": {"settings": {"iou": {"spac": "original"}}}}, "iou: spac"),
    ],
)
def test_settings_are_checked_at_the_start(
    functions: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        score(functions, [])


def test_temporal_contrast() -> None:
    """3 of 4 right with frames in order against 1 of 2 shuffled: the right ones are paid 0.3."""
    functions = {"accuracy": {"type": "count"}, "temporal_contrast": {"of": "accuracy"}}
    shuffled = (think("3"), think("5"))
    ordered = [item(think(a), 3, shuffled=shuffled) for a in ("3", "3", "3", "4")]
    other = [item(think(a), 3, shuffled=(think("3"),), group=1) for a in ("3", "4")]
    rewards = score(functions, ordered + other)
    bonuses = [reward.components["temporal_contrast"] for reward in rewards]
    assert bonuses == [0.3, 0.3, 0.3, 0.0, 0.0, 0.0]
    assert rewards[0].value == 1.3


@pytest.mark.parametrize(
    ("right", "shuffled_right", "options", "bonus"),
    [
        # 2503.21776, equation 1: r_t = alpha where p >= p_shuffled.
        (2, 2, {}, 0.3),
        (2, 3, {}, 0.0),
        # 0.75 against 0.75 * 1 and 0.8 * 1.
        (3, 4, {"shuffled_factor": 0.75}, 0.3),
        (3, 4, {"shuffled_factor": 0.8}, 0.0),
    ],
)
def test_temporal_contrast_at_equal_accuracy(
    right: int, shuffled_right: int, options: dict[str, float], bonus: float
) -> None:
    """Of 4 completions each; the first is right."""
    contrast = {"of": "count", **options}
    shuffled = tuple(think("3" if i < shuffled_right else "5") for i in range(4))
    ordered = [item(think("3" if i < right else "5"), 3, shuffled=shuffled) for i in range(4)]
    rewards = score({"temporal_contrast": contrast}, ordered)
    assert [r.components["temporal_contrast"] for r in rewards] == [bonus] * right + [0.0] * (
        4 - right
    )


def test_temporal_contrast_without_shuffled_completions_is_no_reward() -> None:
    functions = {"temporal_contrast": {"of": "count"}}
    none_came, not_asked = score(
        functions, [item(think("3"), 3, shuffled=()), item(think("3"), 3, group=1)]
    )
    assert (none_came.value, none_came.status) == (None, Status.ERROR)
    assert not_asked.value == 0.0  # an image: no contrast, no bonus


THINKING = "<think>AB = 3 and BC = 4.\n\nSo AC^2 = 25.\n\nAC = 5, not 50.</think><answer>5</answer>"


def test_steps_are_found_in_order() -> None:
    assert steps(THINKING, ["AB = 3", "AC^2=25", "AC = 5"]) == 1.0
    assert steps(THINKING, ["AC = 5", "AB = 3"]) == 0.5  # the second is not after the first
    assert steps(THINKING, ["AB = 30", "BC=4"]) == 0.0  # stuck at the first
    assert steps(THINKING, [["AB is 3", "AB = 3"], "AC=5"]) == 1.0


def test_each_written_step_has_its_reward() -> None:
    rewards = step_rewards(THINKING, ["AB = 3", "BC = 4", "AC^2 = 25", "AC = 5"])
    assert [step.value for step in rewards] == [0.5, 0.25, 0.25]
    assert [THINKING[: step.end].endswith(step.text) for step in rewards] == [True] * 3


def test_numbered_lines_are_steps() -> None:
    text = "Step 1: a\nstill a\nStep 2: b\n- c"
    assert [step for step, _ in split_steps(text)] == ["Step 1: a\nstill a", "Step 2: b", "- c"]


@pytest.mark.parametrize("key_steps", [None, [], "AB", [""], [[]]])
def test_key_steps_that_are_none(key_steps: Any) -> None:
    with pytest.raises(BadGoldError):
        steps(THINKING, key_steps)


def test_auto_picks_by_the_task_of_each_sample() -> None:
    items = [
        item(think("3.0"), 3, task="count"),
        item(think("B"), "B", task="multiple choice"),
        item(think(r"\sqrt{12}"), r"2\sqrt{3}", task="math"),
        item(think("[0, 0, 5, 10]"), [0, 0, 10, 10], task="iou"),
        item(think("9"), 10, task="regression"),
        item(think("a b"), "a b", task="OCR"),
        item(think("0 to 5"), [0, 10], task="temporal-grounding"),
        item(think("a cat"), "a cat", task="free-form"),
        item(think("1"), 1, task="telepathy"),
        item(think("1"), 1),
    ]
    rewards = score({"auto": {}}, items)
    assert [reward.value for reward in rewards[:8]] == [1.0, 1.0, 1.0, 0.5, 0.9, 1.0, 0.5, 1.0]
    assert [reward.status for reward in rewards[8:]] == [Status.ERROR] * 2
    assert "telepathy" in (rewards[8].error or "")


def test_auto_settings_go_to_the_reward_they_name() -> None:
    box = item(
        think("[0, 0, 500, 1000]"), [0, 0, 50, 80], task="iou", meta={"image_size": [100, 80]}
    )
    (reward,) = score({"auto": {"settings": {"iou": {"space": "0-1000"}}}}, [box])
    assert reward.value == 1.0


def test_auto_checks_golds_by_task() -> None:
    items = [item("", "3", task="count"), item("", "many", task="count"), item("", 1)]
    config = read_rewards({"auto": {}}), ScoringConfig()
    with build_composite_reward(*config) as composite_reward:
        problems = composite_reward.check_gold([i.sample for i in items])
    assert ["not a finite number" in problems[0][1], "no task type" in problems[1][1]] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("accuracy", "group", "length", "value"),
    [
        (1.0, [1.0, 1.0], 320, 0.2),
        (1.0, [1.0, 1.0], 512, 0.2),
        (1.0, [1.0, 1.0], 319, 0.0),
        (1.0, [1.0, 1.0], 513, 0.0),
        (1.0, [1.0, 0.0], 400, 0.0),  # the only right one of its group
        (0.0, [1.0, 1.0, 0.0], 400, 0.0),
        (0.2, [0.2, 0.2], 400, 0.2),
    ],
)
def test_length_bonus(accuracy, group, length, value):
    window = {"min_length": 320, "max_length": 512, "correct_above": 0.1}
    assert length_bonus("x", accuracy, group, range(length), **window) == value
