"""Samples that are graded by a composite reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.types import Reward
from tests.rewards.helpers import item

SAMPLES = next(
    (
        up / "shared" / "samples"
        for up in Path(__file__).resolve().parents
        if (up / "shared").is_dir()
    ),
    Path("shared/samples"),
)


def graded(path: str) -> list[dict[str, Any]]:
    file = SAMPLES / path
    if not file.is_file():
        pytest.skip(f"{path} is not among the samples")
    return json.loads(file.read_text())


def score(name: str, rows: list[dict[str, Any]]) -> list[Reward]:
    functions = {name: {}}
    items: list[RewardItem] = [item(row["model_output"], row["ground_truth"]) for row in rows]
    with build_composite_reward(
        read_rewards(functions), ScoringConfig(timeout_s=10.0)
    ) as composite_reward:
        return composite_reward.score(items)
