"""Tables of answers with the verdict of a careful reader, over every reward that reads one.

``answers.jsonl`` was open while the reader was written. The tables of first to sixth sight
were written before their first run, in which 131 of 132, 136 of 147, 168 of 185, 150 of 166, 38 of
79 and 64 of 66 were right, and 0, 3, 1, 4, 5 and 0 wrong ones were rewarded; the fifth holds kinds
that were known to be unread: shorthand (2k), temperatures, options with numbers, more units, and
letters that stand right behind a digit; the sixth holds all kinds of the open table. A row holds a
completion, its gold and what is expected: a number, or the status of an answer that is not there,
cannot be read, or has an unreadable gold.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.plugins.item_rows import to_item
from mmr1.types import Reward
from tests.jsonl import read_jsonl
from tests.paths import REPOSITORY

SETS = REPOSITORY / "tests" / "rewards" / "answer_sets"
NEAR = 0.06
UNPAID_OF_A_KIND = 1
RIGHT = {
    "answers": 440,
    "first_sight": 130,
    "second_sight": 143,
    "third_sight": 181,
    "fourth_sight": 163,
    "fifth_sight": 79,
    "sixth_sight": 66,
}
STATUSES = {"unread": {"unread", "no_answer"}, "no_answer": {"no_answer"}, "bad_gold": {"bad_gold"}}


def score(rows: list[dict[str, Any]]) -> list[Reward]:
    """Return the reward of each row, in order."""
    rewards: dict[int, Reward] = {}
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row["reward"], json.dumps(row.get("options") or {})].append(index)
    for (name, options), indices in groups.items():
        rewards_of_rows = read_rewards({name: json.loads(options)})
        with build_composite_reward(rewards_of_rows, ScoringConfig(timeout_s=20.0)) as reward:
            items = [to_item(_record(rows[i], i), rows[i]["id"]) for i in indices]
            rewards |= dict(zip(indices, reward.score(items), strict=True))
    return [rewards[index] for index in range(len(rows))]


def _record(row: dict[str, Any], group: int) -> dict[str, Any]:
    columns = row.get("columns", {})
    return {"completion": row["completion"], "answer": row["gold"], "group": group, **columns}


def verdict(expected: Any, reward: Reward) -> str:
    """Return "right", "paid" for too high a reward, "unpaid" for too low a one, or "unsaid"."""
    if isinstance(expected, str):
        if reward.value:
            return "paid"
        return "right" if reward.status in STATUSES[expected] else "unsaid"
    if reward.value is None:
        return "invalid"
    if abs(reward.value - expected) <= NEAR:
        return "right"
    return "paid" if reward.value > expected else "unpaid"


@pytest.mark.parametrize("table", sorted(RIGHT))
def test_tables_hold_no_rewarded_wrong_answer(table: str) -> None:
    rows = read_jsonl(SETS / f"{table}.jsonl")
    verdicts = [verdict(row["expected"], r) for row, r in zip(rows, score(rows), strict=True)]
    missed = [(row, v) for row, v in zip(rows, verdicts, strict=True) if v != "right"]
    assert [(row["id"], v) for row, v in missed if v != "unpaid"] == []
    unpaid = Counter(row["kind"] for row, _ in missed)
    assert {kind for kind, count in unpaid.items() if count > UNPAID_OF_A_KIND} == set()
    assert len(rows) - len(missed) >= RIGHT[table]
