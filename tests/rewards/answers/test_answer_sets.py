"""Answers written before the code that reads them: to build with, held out, and negations.

The second ones were written later, by someone who had not read the code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.types import Reward
from tests.rewards.helpers import item, think

SETS = Path(__file__).parents[1] / "answer_sets"


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SETS / f"{name}.jsonl").read_text().splitlines()]


def score(function: str, rows: list[dict[str, Any]]) -> list[Reward]:
    functions = {function: {}}
    with build_composite_reward(read_rewards(functions), ScoringConfig(timeout_s=10.0)) as reward:
        return reward.score([item(think(row["answer"]), row["gold"]) for row in rows])


@pytest.mark.parametrize("name", ["build", "held_out", "second"])
def test_math_pays_no_wrong_answer_and_nine_right_ones_of_ten(name: str) -> None:
    rows = read(name)
    rewards = score("math", rows)
    paid_wrong = [
        row for row, r in zip(rows, rewards, strict=True) if r.value and not row["verdict"]
    ]
    assert paid_wrong == []
    correct = [r.value == row["verdict"] for row, r in zip(rows, rewards, strict=True)]
    assert len(rows) == 60
    assert sum(correct) >= 54


@pytest.mark.parametrize("function", ["choice", "count", "numeric"])
def test_no_negation_is_paid(function: str) -> None:
    rows = [*read("negations"), *read("second_negations")]
    rows = [row for row in rows if row["reward"] == function]
    rewards = score(function, rows)
    assert all(reward.valid for reward in rewards)
    paid = [row["answer"] for row, reward in zip(rows, rewards, strict=True) if reward.value]
    assert rows
    assert paid == []


@pytest.mark.parametrize("function", ["math", "choice", "count"])
def test_bare_text_is_no_answer(function: str) -> None:
    gold = "C" if function == "choice" else "5"
    texts = [f"The answer is {gold}.", f"**Answer:** {gold}", f"```\n{gold}\n```", f"答案是{gold}"]
    functions = {function: {}}
    with build_composite_reward(read_rewards(functions)) as reward:
        rewards = reward.score([item(text, gold) for text in texts])
    assert {r.status.value for r in rewards} == {"no_answer"}
