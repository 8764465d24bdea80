"""The reward: ``rewards``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from mmr1.config.section import Fraction, Positive, Section


class RewardFunctionConfig(Section):
    """One named, weighted part of the reward."""

    use: str | None = Field(
        None,
        description="Built-in name, file.py:function, dotted path or URL; default: the name",
    )
    weight: float = Field(1.0, allow_inf_nan=False, description="0 logs the part only")
    gate: float | None = Field(
        None,
        allow_inf_nan=False,
        description="The parts after this one are 0 for a completion below this value",
    )
    isolated: bool = Field(
        True, description="Run a plugin in the sandbox: no network, no writing, limited memory"
    )
    readable: list[str] = Field(
        default_factory=list,
        description="Files and folders that an isolated plugin may read besides its own folder",
    )
    timeout_s: float | None = Field(
        None, gt=0, description="Deadline of one call of a plugin or URL; else rewards.timeout_s"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword options")


class RewardsConfig(Section):
    """The weighted sum of named parts, and the pool of processes that verifies answers."""

    functions: dict[str, RewardFunctionConfig] = Field(
        default_factory=lambda: {
            "format": RewardFunctionConfig(weight=0.5),
            "math": RewardFunctionConfig(weight=1.0),
        },
        min_length=1,
    )
    workers: Positive = Field(2, description="Verifier processes")
    timeout_s: float = Field(
        2.0,
        gt=0,
        description="Deadline of one verdict by rule, in CPU time; of a plugin or URL, on the wall",
    )
    start_timeout_s: float = Field(
        120.0, gt=0, description="Longest wait for a worker to import the verifier or a plugin"
    )
    allow_weak_sandbox: bool = Field(
        False, description="Run where the system denies the sandbox a wall that it needs"
    )
    max_invalid_fraction: Fraction = Field(
        0.2, description="The run stops when more of a step's completions have no valid reward"
    )

    @field_validator("functions", mode="before")
    @classmethod
    def _drop(cls, functions: Any) -> Any:
        """``rewards.functions.NAME=null`` takes a function of the file out."""
        if not isinstance(functions, Mapping):
            return functions
        return {name: function for name, function in functions.items() if function is not None}
