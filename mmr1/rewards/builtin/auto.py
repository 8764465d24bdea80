"""The reward that fits each record's task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from mmr1.registry import suggest
from mmr1.rewards.kind import RewardConfig, reward, rewards_of_tasks


@reward("auto", body="mmr1.rewards.functions:AutoReward")
class AutoRewardConfig(RewardConfig):
    """The built-in reward that fits each record's task type; one without is an error at load."""

    type: Literal["auto"] = "auto"
    settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Settings of rewards by name, as in {iou: {space: resized}}",
    )

    @field_validator("settings")
    @classmethod
    def _of_rewards(cls, settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        names = sorted(set(rewards_of_tasks().values()))
        for name, values in settings.items():
            if name not in names:
                raise ValueError(
                    f"no task is scored by '{name}'{suggest(name, names)}; {', '.join(names)}"
                )
            try:
                reward.parts[name].section(**values)
            except ValidationError as error:
                first = error.errors()[0]
                key = ".".join(map(str, first["loc"]))
                raise ValueError(f"{name}: {key}: {first['msg']}") from None
        return settings
