"""The ``environment`` section.

Another package declares a type of it as an entry point in the group ``mmr1.environment_types``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from mmr1.part import union_of
from mmr1.registry import Registry
from mmr1.rewards.kind import SandboxConfig
from mmr1.section import Coefficient, EnvironmentSection, Need, OwnPart, Positive


class EnvironmentConfig(EnvironmentSection):
    """Answers the policy between its turns. Without it a completion is one turn."""

    needs: ClassVar[tuple[Need, ...]] = (
        *EnvironmentSection.needs,
        Need(
            ("environment.sandbox",),
            lambda c: (
                isinstance(c.environment, EnvironmentConfig) and c.environment.sandbox is None
            ),
            "tools run without walls, on text that the policy writes: they read, write, start and "
            "reach what you can; leave it out for tools that need none of it",
            ("environment={type: tools, tools: [zoom], sandbox: null}",),
            warns=True,
            commands=("policy", "evaluation"),
        ),
    )

    builder: ClassVar[str] = "mmr1.rollout.build:player"
    rewards_turns: ClassVar[bool] = True

    instructions: str | None = Field(
        None,
        description="What the system prompt says of the tools; empty: nothing. null: their "
        "schemas, as the chat template writes them",
    )
    parser: str | None = Field(
        None,
        description="file.py:function that reads the calls of a turn: text -> list of {name, "
        "arguments}. null: Qwen's <tool_call> JSON",
    )
    max_turns: Positive = Field(4, description="Turns of the policy in one conversation")
    max_calls: Positive = Field(
        32, description="Tool calls of one turn; the policy is told that those after it did not run"
    )
    max_tokens_per_turn: Positive = Field(
        256,
        description="Sampled tokens of one turn; one that reaches it ends the conversation as "
        "truncated. rollout.max_response_length limits all turns and the answers between them",
    )
    max_images: Positive = Field(8, description="Pictures that tools may show in one conversation")
    max_pixels: Positive = Field(
        4_000_000, description="Pixels of such a picture; a larger one is made smaller"
    )
    max_characters: Positive = Field(
        4096, description="Characters of one answer; a longer one is cut, and says so"
    )
    boxes: Literal["model", "resized", "original", "0-1000", "0-1"] = Field(
        "model",
        description="Space of the boxes that the policy gives to tools; model: that of its family, "
        "resized: pixels as the model saw the picture, original: the picture's own pixels",
    )
    timeout_s: Coefficient = Field(
        5.0, description="Seconds allowed for one call; then its process is killed"
    )
    workers: Positive = Field(2, description="Processes that tools run in")
    sandbox: SandboxConfig | None = Field(
        SandboxConfig(),
        description="Where tools of your own run; null: without walls, for those that ask a "
        "server, write files, start programs or use a GPU",
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a custom class."""
        return {}


class ToolsConfig(EnvironmentConfig):
    """Tools that the policy calls."""

    type: Literal["tools"] = "tools"
    tools: tuple[str, ...] = Field(
        min_length=1,
        description="Built-in names, or file.py:function with type hints and a docstring; or a "
        "file of MCP servers (.json), or of tools in another project's style (.yaml)",
    )

    @field_validator("tools")
    @classmethod
    def _once(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tools)) < len(tools):
            raise ValueError("a tool is named twice; name each once")
        return tools

    @property
    def specs(self) -> tuple[str, ...]:
        """The tools, by their names."""
        return self.tools


class OwnEnvironment(EnvironmentConfig, OwnPart):
    """An environment of your own, such as a class with reset(sample) and step(action)."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The class, by its name."""
        return (self.type,)

    @property
    def arguments(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return self.settings


OF_PACKAGES = Registry("environment type", {}, group="mmr1.environment_types", attribute="NAME")
"""Each is an :class:`EnvironmentSection`."""
ENVIRONMENTS = Registry("environment", {}, group="mmr1.environments", attribute="Class")
"""Each is a class of installed packages, as :class:`OwnEnvironment` names it."""

if TYPE_CHECKING:
    Environment = EnvironmentSection
else:
    _of_packages = {name: OF_PACKAGES.load(name) for name in sorted(OF_PACKAGES.names())}
    Environment = union_of({"tools": ToolsConfig, **_of_packages}, OwnEnvironment, ENVIRONMENTS)
