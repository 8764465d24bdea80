"""The kind of part that a reward is: its decorator, and the keys that every reward has.

    @reward("near", example={"completion": "9", "answer": 10, "reward": 0.9})
    def near(completion: str, answer: float, *, scale: float = 10.0) -> float:
        \"""1 less the distance from the gold answer.

        Args:
            scale: Distance at which nothing is paid.
        \"""

What stands before ``*`` is read from the record and the completion by its name, and what stands
behind is a setting: ``rewards: {near: {weight: 1, scale: 5}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from mmr1.part import Kind, Part
from mmr1.registry import REWARD_STYLES
from mmr1.section import Coefficient, OwnPart, Section


class RewardConfig(Section):
    """A reward. Its value is a component of the sum.

    ``tasks``: task types of records that ``auto`` scores with it. ``gold``: reads a gold answer at
    load; it raises BadGoldError, or returns a Job for the sandbox.
    """

    tasks: ClassVar[tuple[str, ...]] = ()
    gold: ClassVar[Callable[..., Any] | None] = None

    weight: float = Field(1.0, description="Weight in the sum; 0: log only")
    gate: float | None = Field(
        None, description="If the value is below this, later rewards are skipped and count as 0"
    )
    if TYPE_CHECKING:
        type: str = ""

    @classmethod
    def expanded(cls, short: Any) -> Any:
        """Write a number out as the weight."""
        is_number = isinstance(short, int | float) and not isinstance(short, bool)
        return {"weight": short} if is_number else short


class OfAccuracy(RewardConfig):
    """A reward that is computed from the accuracy of another."""

    of: str = Field(
        "math", description="Reward whose accuracy it reads: an earlier one, or a built-in one"
    )


class SandboxConfig(Section):
    """A sandbox without network and file writes, with limited memory."""

    readable: tuple[str, ...] = Field(
        (), description="Files and folders that it may read besides its own folder"
    )


class OwnReward(RewardConfig, OwnPart):
    """A reward of your own."""

    timeout_s: Coefficient | None = Field(
        None, description="Seconds allowed for one call; null: scoring.timeout_s"
    )
    style: str | None = Field(
        None,
        description="Whose reward function it is written as: mmr1, trl, easyr1, verl, or a style "
        "that a package declares; null: the names of its parameters tell",
    )
    call: Literal["group", "batch"] | None = Field(
        None,
        description="What a function that takes lists gets per call: the completions of one "
        "prompt, or the whole batch; null: group for a function of TRL's form, else batch",
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

    @field_validator("type")
    @classmethod
    def _is_no_address(cls, name: str) -> str:
        if name.startswith(("http://", "https://")):
            raise ValueError("a server is {type: remote, url: ...}")
        return name


reward = Kind(
    "rewards.NAME",
    "mmr1.rewards.builtin",
    base=RewardConfig,
    own=OwnReward,
    default="",
    called=True,
    word="reward",
)


def section_named(name: str) -> type[RewardConfig]:
    """Return the section class of a built-in reward."""
    section = reward.parts[name].section
    assert issubclass(section, RewardConfig)
    return section


@cache
def rewards_of_tasks() -> Mapping[str, str]:
    """Return the name of the reward for each task type, ours and other projects'."""
    return {task: name for name in reward.parts for task in section_named(name).tasks}


@lru_cache(maxsize=1 << 10)
def reward_of_task(task: str | None) -> str | None:
    """Return the reward for a task type, or None; case, ``-`` and ``_`` do not matter."""
    if task is None:
        return None
    plain = {known.replace("-", " "): name for known, name in rewards_of_tasks().items()}
    return plain.get(task.lower().replace("_", " ").replace("-", " ").strip())


def gold_check(name: str) -> Callable[..., Any] | None:
    """Return what checks the gold answers of a reward: it raises BadGoldError, or returns a Job."""
    return section_named(name).gold


def typed_settings(part: Part, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a declared function, checked, with the defaults of those not given.

    Raises:
        ValueError: If one is unknown or wrong.
    """
    try:
        section = part.section(**settings)
    except ValidationError as error:
        lines = [f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()]
        raise ValueError(f"reward '{part.name}': {'; '.join(lines)}") from error
    names = part.section.model_fields.keys() - RewardConfig.model_fields.keys() - {"type"}
    return {name: getattr(section, name) for name in names}
