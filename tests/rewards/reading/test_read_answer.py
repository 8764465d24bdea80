"""The reader of answers as plugins and rewards call it."""

from __future__ import annotations

from fractions import Fraction

import pytest

import mmr1
from mmr1.config import read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.composite import reward_stats
from mmr1.rewards.reading.characters import clean, unwrap
from mmr1.rewards.reading.extract import extract_answer
from mmr1.rewards.reading.stance import Stance, pieces
from mmr1.types import Status
from tests.rewards.helpers import item, think


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        ("choice", "C, not A", "C"),
        ("choice", "the second option", "B"),
        ("boolean", "No, it is not.", False),
        ("boxes", "dog 3: [1, 2, 3, 4]", [(1.0, 2.0, 3.0, 4.0)]),
        ("boxes", "There is no dog.", []),
        ("span", "3 to 5 minutes", (180.0, 300.0)),
        ("text", "**New York**.", "New York"),
    ],
)
def test_read_answer_returns_typed_value(kind: str, answer: str, value: object) -> None:
    reading = mmr1.read_answer(think(answer), kind)
    assert reading
    assert reading.value == value


def test_read_answer_returns_number_with_unit_and_place() -> None:
    reading = mmr1.read_answer(think("It is not 6 cm, but 1.5 m"), "number")
    assert reading
    assert (reading.value.value, reading.value.unit.dimension) == (Fraction(3, 2), "length")
    assert "It is not 6 cm, but 1.5 m"[reading.start : reading.end].strip() == "but 1.5 m"


@pytest.mark.parametrize(
    ("completion", "reason"),
    [("4", "no answer"), (think("many"), "no number"), (think("not 5"), "only negated: not 5")],
)
def test_read_answer_says_why_nothing_is_read(completion: str, reason: str) -> None:
    reading = mmr1.read_answer(completion, "number")
    assert not reading
    assert reading.reason == reason


def test_read_answer_rejects_unknown_kind() -> None:
    with pytest.raises(ValueError, match="known are choice, number"):
        mmr1.read_answer(think("4"), "colour")


@pytest.mark.parametrize(
    ("text", "stances"),
    [
        ("C, not A", {"C": Stance.ASSERTED, "not A": Stance.NEGATED}),
        ("not A but C", {"not A": Stance.NEGATED, "C": Stance.ASSERTED}),
        ("anything but C", {"anything but C": Stance.NEGATED}),
        ("3 or 4", {"3 or 4": Stance.HEDGED}),
        ("5 is too few", {"5 is too few": Stance.NEGATED}),
        ("C is correct", {"C is correct": Stance.ASSERTED}),
        ("It is not 4; it is 5", {"not 4": Stance.NEGATED, "5": Stance.ASSERTED}),
    ],
)
def test_pieces_have_their_own_stance(text: str, stances: dict[str, Stance]) -> None:
    found = {piece.value: piece.stance for piece in pieces(text)}
    assert found == stances


def test_cleaning_keeps_what_means_something() -> None:
    assert clean("\ufeff１２\u00a0cm²\u200b") == "12 cm²"
    assert clean("½ √2 ①") == "½ √2 ①"
    assert unwrap('**"New York"**.') == "New York"
    assert unwrap("n!") == "n!"


def test_boxed_values_become_members_of_the_gold() -> None:
    text = r"<answer>x_1 = \boxed{2}, x_2 = \boxed{\frac{1}{3}}</answer>"
    assert extract_answer(text, members=2) == r"2, \frac{1}{3}"
    assert extract_answer(text) == extract_answer(text, members=3) == r"\frac{1}{3}"


def test_unread_answer_has_status_reason_and_metric() -> None:
    functions = {"count": {}, "math": {"weight": 0.5}}
    with build_composite_reward(read_rewards(functions)) as reward:
        unread, read, absent = reward.score(
            [item(think("many"), 4), item(think("5"), 4), item("<think>4</think>", 4)]
        )
    assert (unread.value, unread.status) == (0.0, Status.UNREAD)
    assert unread.error == "count: no number"
    assert (read.status, absent.status) == (Status.OK, Status.NO_ANSWER)
    stats = reward_stats([unread, read, absent])
    assert stats["rewards/count/num_unread"] == stats["rewards/math/num_unread"] == 1
    assert stats["reward/num_no_answer"] == 1
    assert stats["reward/num_invalid"] == 0


def test_unread_answer_counts_in_the_baseline() -> None:
    """A skip would let a policy hide a hard prompt behind what cannot be read."""
    assert Status.UNREAD.valid


def test_unit_boxes_are_unread_in_pixel_space() -> None:
    functions = {"iou": {}}
    with build_composite_reward(read_rewards(functions)) as reward:
        (unit,) = reward.score([item(think("[0.1, 0.2, 0.5, 0.6]"), [10, 20, 50, 60])])
    assert (unit.value, unit.status) == (0.0, Status.UNREAD)
    assert "0-1" in (unit.error or "")
