"""The ``environment`` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mmr1.config.rewards import SandboxConfig
from mmr1.section import Coefficient, Positive, Section


class EnvironmentConfig(Section):
    """Answers the policy between its turns. Without it a completion is one turn."""

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
    boxes: Literal["resized", "original", "0-1000", "0-1"] = Field(
        "resized",
        description="Scale of a box's numbers; resized: pixels as the model saw the picture, "
        "original: its own pixels",
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
    def specs(self) -> tuple[str, ...]:
        """The tools, or the class, by their names."""
        if isinstance(self, CustomEnvironmentConfig):
            return (self.use,)
        return self.tools if isinstance(self, ToolsConfig) else ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a custom class."""
        return self.options if isinstance(self, CustomEnvironmentConfig) else {}


class ToolsConfig(EnvironmentConfig):
    """Tools that the policy calls."""

    type: Literal["tools"] = "tools"
    tools: tuple[str, ...] = Field(
        min_length=1,
        description="Built-in names, or file.py:function with type hints and a docstring; verl's "
        "tools by their YAML file",
    )

    @field_validator("tools")
    @classmethod
    def _once(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tools)) < len(tools):
            raise ValueError("a tool is named twice; name each once")
        return tools


class CustomEnvironmentConfig(EnvironmentConfig):
    """An environment of your own."""

    type: Literal["custom"] = "custom"
    use: str = Field(
        description="file.py:Class with reset(sample) and step(action); TRL's and OpenRLHF's "
        "environments too"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments")


class AgentConfig(Section):
    """A program of your own that asks the policy by OpenAI's chat API."""

    type: Literal["agent"] = "agent"
    use: str = Field(
        description="file.py:function, run(client, sample): async with openai's AsyncOpenAI, or "
        "not, with OpenAI. It returns a reward, or None where rewards.functions say it all. "
        "gymnasium, openenv, verifiers: an environment of these libraries"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments")
    max_turns: Positive = Field(
        16, description="Requests of one episode; those after them are refused"
    )
    max_tokens_per_turn: Positive = Field(1024, description="Sampled tokens of one request")
    max_images: Positive = Field(8, description="Pictures in one conversation of a program")
    timeout_s: Coefficient = Field(
        60.0,
        description="Seconds that a program may take between its requests, waiting for the policy "
        "not counted; then its process is killed",
    )
    workers: Positive = Field(
        16, description="Programs that run side by side, each in a separate process"
    )

    @property
    def specs(self) -> tuple[str, ...]:
        """The program, by its name."""
        return (self.use,)


Environment = Annotated[
    ToolsConfig | CustomEnvironmentConfig | AgentConfig, Field(discriminator="type")
]
