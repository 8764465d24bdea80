"""The ``rewards`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from mmr1.config.section import Fraction, Positive, Section


class RewardFunctionConfig(Section):
    """One reward function. Its value is a component of the reward."""

    use: str | None = Field(
        None,
        description="Built-in name, file.py:function, dotted path or URL; default: NAME",
    )
    weight: float = Field(1.0, allow_inf_nan=False, description="Weight in the sum; 0: log only")
    gate: float | None = Field(
        None,
        allow_inf_nan=False,
        description="If the value is below this, later functions are skipped and count as 0",
    )
    isolated: bool = Field(
        True, description="Run a plugin in the sandbox: no network, no file writes, limited memory"
    )
    readable: list[str] = Field(
        default_factory=list,
        description="Files and folders that an isolated plugin may read besides its own folder",
    )
    timeout_s: float | None = Field(
        None,
        gt=0,
        description="Seconds allowed for one call of a plugin, URL or judge; default: "
        "rewards.timeout_s, for a judge 60",
    )
    call: Literal["group", "batch"] | None = Field(
        None,
        description="What a plugin that takes lists gets per call: the completions of one prompt, "
        "or the whole batch; default: group for a function of TRL's form, else batch",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the function"
    )


class RewardsConfig(Section):
    """The reward: a weighted sum of reward functions. Answers are verified in a process pool."""

    functions: dict[str, RewardFunctionConfig] = Field(
        default_factory=lambda: {
            "format": RewardFunctionConfig(weight=0.5),
            "math": RewardFunctionConfig(weight=1.0),
        },
        min_length=1,
        description="The reward functions by name. If not set: format (weight 0.5) and math",
    )
    workers: Positive = Field(2, description="Processes that verify answers")
    timeout_s: float = Field(
        2.0,
        gt=0,
        description="Seconds allowed for one answer: CPU time of a built-in function, wall-clock "
        "time of a plugin or URL",
    )
    start_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that a worker process may take to import the verifier or a plugin",
    )
    allow_weak_sandbox: bool = Field(
        False, description="Run even if the system lacks a protection that the sandbox needs"
    )
    max_invalid_fraction: Fraction = Field(
        0.2,
        description="The run stops if a larger share of a step's completions has no valid reward",
    )

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the functions that are not just logged, by name."""
        return {name: f.weight for name, f in self.functions.items() if f.weight}

    @field_validator("functions", mode="before")
    @classmethod
    def _drop(cls, functions: Any) -> Any:
        """``rewards.functions.NAME=null`` removes a function that the file has."""
        if not isinstance(functions, Mapping):
            return functions
        return {name: function for name, function in functions.items() if function is not None}
