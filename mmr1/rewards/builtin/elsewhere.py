"""Rewards that are made where torch, or the caller's Python, is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmr1.rewards.kind import RewardConfig, reward
from mmr1.section import Need


@reward(
    "reward_model",
    body="mmr1.rewards.functions:refuse_without_run",
    needs=(
        Need(
            ("environment", "rewards"),
            lambda c: c.environment is not None,
            "a reward model reads a completion as one text; leave one of them out",
            ("environment.tools=[zoom]", "rewards={liked: {type: reward_model, path: x}}"),
        ),
    ),
)
class RewardModelConfig(RewardConfig):
    """A trained reward model's number, or the chances that a completion's steps are right."""

    type: Literal["reward_model"] = "reward_model"
    path: str = Field(description="Checkpoint of a reward model (docs/preferences.md)")
    reduce: Literal["min", "product", "last"] | None = Field(
        None, description="Of a model of steps, the value from the steps' chances; null: min"
    )


@reward("python", body="mmr1.rewards.functions:refuse_without_function")
class PythonConfig(RewardConfig):
    """A function that ``mmr1.Trainer`` was given in Python, which no file names."""

    type: Literal["python"] = "python"
