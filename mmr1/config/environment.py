"""The ``environment`` section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmr1.config.section import Positive, Section

TOOLS = "tools"


class EnvironmentConfig(Section):
    """What answers the policy between its turns. Without it a completion is one turn."""

    use: str = Field(
        TOOLS,
        description="tools, or file.py:Class with reset(sample) and step(action); TRL's and "
        "OpenRLHF's environments too",
    )
    tools: tuple[str, ...] = Field(
        (),
        description="Built-in names, or file.py:function with type hints and a docstring; verl's "
        "tools by their YAML file",
    )
    instructions: str | None = Field(
        None,
        description="What the system prompt says of the tools; empty: nothing. Default: their "
        "schemas, as the chat template writes them",
    )
    parser: str | None = Field(
        None,
        description="file.py:function that reads the calls of a turn: text -> list of {name, "
        "arguments}. Default: Qwen's <tool_call> JSON",
    )
    max_turns: Positive = Field(4, description="Turns of the policy in one conversation")
    max_calls: Positive = Field(
        32, description="Tool calls of one turn; the policy is told that those after it did not run"
    )
    max_tokens_per_turn: Positive = Field(
        256,
        description="Sampled tokens of one turn; one that reaches it ends the conversation as "
        "truncated. rollout.sampling.max_tokens limits all turns and the answers between them",
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
        description="What the numbers of a box mean: pixels as the model saw the picture, its "
        "own pixels, or a scale across it",
    )
    timeout_s: float = Field(
        5.0, gt=0, description="Seconds allowed for one call; then its process is killed"
    )
    start_timeout_s: float = Field(
        120.0, gt=0, description="Seconds that a process may take to import the tools"
    )
    workers: Positive = Field(2, description="Processes that tools run in")
    readable: list[str] = Field(
        default_factory=list,
        description="Files and folders that tools may read besides their own folder",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of an environment's class"
    )

    @model_validator(mode="after")
    def _make_sense(self) -> EnvironmentConfig:
        if self.use == TOOLS and not self.tools:
            raise ValueError(
                "environment.use=tools and environment.tools is empty: name tools, such as zoom, "
                "or an environment of your own in environment.use"
            )
        if self.use != TOOLS and self.tools:
            raise ValueError(
                f"environment.use={self.use} has its own actions: leave environment.tools out, or "
                "set environment.use=tools"
            )
        if self.use == TOOLS and self.options:
            raise ValueError("environment.options are of an environment's class; leave them out")
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("environment.tools names a tool twice; name each once")
        return self
