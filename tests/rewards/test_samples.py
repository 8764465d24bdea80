"""Graded outputs of real models: where the upstream verdict and ours differ, and who is right."""

from __future__ import annotations

from typing import Any

from mmr1.types import Reward
from tests.rewards.graded_samples import graded, score


def disagreements(rows: list[dict[str, Any]], rewards: list[Reward]) -> list[tuple[str, str]]:
    differing = []
    for row, reward in zip(rows, rewards, strict=True):
        upstream = row.get("is_correct", row["extracted_answer"] == row["ground_truth"])
        if reward.value is None or bool(reward.value) != upstream:
            differing.append((str(row["ground_truth"]), row["model_output"].split("<answer>")[-1]))
    return differing


def test_geoqa_outputs_of_r1v() -> None:
    rows = graded("geoqa_r1v/model_outputs_grpo_2epochs_subset.json")
    rewards = score("math", rows)
    assert all(reward.valid for reward in rewards)
    # Upstream read sqrt(3)/2 as 1, and paid 1.5 for 3√3/2, 2.0 for 2√2-2 and 60√3 for 60√3+1.
    assert disagreements(rows, rewards) == [
        (r"\frac{3}{2}√{3}", "1.5</answer>"),
        (r"\frac{√{3}}{2}", "sqrt(3)/2</answer>"),
        ("2√{2}-2", "2.0</answer>"),
        ("60√{3}+1", "60sqrt(3)m</answer>"),
    ]


def test_superclevr_outputs_of_r1v() -> None:
    rows = graded("superclevr_counting_r1v/model_outputs_grpo100_subset.json")
    rewards = score("count", rows)
    assert all(reward.valid for reward in rewards)
    assert disagreements(rows, rewards) == []
