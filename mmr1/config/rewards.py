"""The ``rewards`` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, field_validator

from mmr1.machine import cores
from mmr1.registry import REWARD_STYLES
from mmr1.section import ALL, Coefficient, Fraction, Need, Positive, Section, variant_in


class RewardFunctionConfig(Section):
    """One reward function. Its value is a component of the reward."""

    weight: float = Field(1.0, description="Weight in the sum; 0: log only")
    gate: float | None = Field(
        None,
        description="If the value is below this, later functions are skipped and count as 0",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the function"
    )

    @classmethod
    def variant_of(cls, values: Mapping[str, Any]) -> str:
        """The variant by the form of ``use``: built in, a plugin, a URL or a judge."""
        use = str(values.get("use") or "")
        if use.startswith(("http://", "https://")) or use == "judge":
            return "remote"
        return "plugin" if ":" in use or "." in use else "builtin"

    @classmethod
    def expanded(cls, short: Any) -> Any:
        """Write a number out as the weight, a string as ``use``."""
        if isinstance(short, str):
            return {"use": short}
        is_number = isinstance(short, int | float) and not isinstance(short, bool)
        return {"weight": short} if is_number else short

    @property
    def isolated(self) -> bool:
        """True if it runs in the sandbox."""
        return isinstance(self, PluginConfig) and self.sandbox is not None

    @property
    def readable(self) -> tuple[str, ...]:
        """Files and folders that it may read in the sandbox, besides its own folder."""
        sandbox = self.sandbox if isinstance(self, PluginConfig) else None
        return () if sandbox is None else sandbox.readable

    @property
    def call_timeout_s(self) -> float | None:
        """Seconds allowed for one call where the function has a time limit of its own."""
        return self.timeout_s if isinstance(self, PluginConfig | RemoteConfig) else None


class BuiltinRewardConfig(RewardFunctionConfig):
    """A reward function that is built in, or of an installed package."""

    variant: ClassVar[str] = "builtin"
    use: str | None = Field(None, description="Its name; null: NAME")


class RemoteConfig(RewardFunctionConfig):
    """A reward function behind a URL, or a judge."""

    variant: ClassVar[str] = "remote"
    use: str = Field(description="URL, or judge")
    timeout_s: Coefficient | None = Field(
        None,
        description="Seconds allowed for one call; null: rewards.timeout_s, for a judge 60",
    )


class SandboxConfig(Section):
    """A sandbox without network and file writes, with limited memory."""

    readable: tuple[str, ...] = Field(
        (), description="Files and folders that it may read besides its own folder"
    )


class PluginConfig(RewardFunctionConfig):
    """A reward function of your own."""

    variant: ClassVar[str] = "plugin"
    use: str = Field(description="file.py:function, or a dotted path")
    timeout_s: Coefficient | None = Field(
        None, description="Seconds allowed for one call; null: rewards.timeout_s"
    )
    style: str | None = Field(
        None,
        description="Whose reward function it is written as: mmr1, trl, easyr1, verl, or a style "
        "that a package declares; null: the names of its parameters tell",
    )
    call: Literal["group", "batch"] | None = Field(
        None,
        description="What a plugin that takes lists gets per call: the completions of one prompt, "
        "or the whole batch; null: group for a function of TRL's form, else batch",
    )
    sandbox: SandboxConfig | None = Field(
        SandboxConfig(), description="Where it runs; null: it is not isolated"
    )

    @field_validator("style")
    @classmethod
    def _known(cls, style: str | None) -> str | None:
        if style is not None:
            REWARD_STYLES.check(style)
        return style


def _reward_tag(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return RewardFunctionConfig.variant_of(value)
    return variant_in(value)


RewardFunction = Annotated[
    Annotated[BuiltinRewardConfig, Tag("builtin")]
    | Annotated[RemoteConfig, Tag("remote")]
    | Annotated[PluginConfig, Tag("plugin")],
    Discriminator(_reward_tag),
]


def reward_function(**keys: Any) -> RewardFunction:
    """A reward function's section from its keys, by the form of ``use``."""
    return TypeAdapter[RewardFunction](RewardFunction).validate_python(keys)


def default_functions() -> dict[str, RewardFunction]:
    """The reward functions used if ``rewards.functions`` names none."""
    return {"format": BuiltinRewardConfig(weight=0.5), "math": BuiltinRewardConfig()}


def _names(c: Any) -> Iterator[str | None]:
    """The reward functions that keys name."""
    if c.declaration.kind == "policy":
        yield None if c.data.curriculum is None else c.data.curriculum.function
        within = c.algorithm.resamples and c.algorithm.resamples.range
        named = within.metric.partition("/")[0] if within else "overall"
        yield None if named == "overall" else named
    if c.samples:
        yield from (c.eval.accuracy_function, c.eval.best_of)


def _samples_beside(c: Any) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "none"


class RewardsConfig(Section):
    """The reward: a weighted sum of reward functions. Answers are verified in a process pool."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            (
                "data.curriculum.function",
                "algorithm.filter_groups.range.metric",
                "eval.accuracy_function",
                "eval.sampled.best_of",
            ),
            lambda c: any(
                name is not None and name not in c.rewards.functions for name in _names(c)
            ),
            "one of them names a reward function that is not in rewards.functions; add it there, "
            "or name another",
            ("data.curriculum.function=nope",),
            commands=ALL,
        ),
        Need(
            ("rollout.views.loss", "rewards.functions.temporal_contrast"),
            lambda c: _samples_beside(c) != c.rewards.uses("temporal_contrast"),
            "that reward compares with completions beside each group, and nothing else reads "
            "these; T-GRPO is both: rollout.views={view: shuffle, loss: none} and the reward",
            ("rewards.functions={math: 1, temporal_contrast: {options: {of: math}}}",),
        ),
    )

    functions: dict[str, RewardFunction] = Field(
        default_factory=default_functions,
        min_length=1,
        description="The reward functions by name; a number is short for a weight, a string for "
        "use, null removes one. If not set: format (weight 0.5) and math",
    )
    workers: Positive | None = Field(
        None, description="Processes that verify answers; null: the cores of the machine"
    )
    timeout_s: Coefficient = Field(
        2.0,
        description="Seconds allowed for one answer: CPU time of a built-in function, wall-clock "
        "time of a plugin or URL",
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

    @property
    def processes(self) -> int:
        """Processes that verify answers."""
        return self.workers or cores()

    def uses(self, function: str) -> bool:
        """True if the built-in function of this name is among them."""
        return any((f.use or name) == function for name, f in self.functions.items())

    @field_validator("functions", mode="before")
    @classmethod
    def _by_form(cls, functions: Any) -> Any:
        """Drop functions that are null, and write a NAME that is a path or a URL out as ``use``."""
        if not isinstance(functions, Mapping):
            return functions
        kept = {name: function for name, function in functions.items() if function is not None}
        return {name: _named(str(name), function) for name, function in kept.items()}


def _named(name: str, function: Any) -> Any:
    if not isinstance(function, Mapping) or function.get("use"):
        return function
    is_builtin = RewardFunctionConfig.variant_of({"use": name}) == "builtin"
    return function if is_builtin else {**function, "use": name}
