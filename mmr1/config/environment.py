"""The ``environment`` section.

Another package declares a type of it as an entry point in the group ``mmr1.environment_types``.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from mmr1.config.rewards import SandboxConfig
from mmr1.registry import Registry
from mmr1.section import Coefficient, EnvironmentSection, Positive

_HOST = re.compile(r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<name>[^\s:/\[\]*@]+))(?::(?P<port>\d{1,5}))?")


def host_and_port(text: str) -> tuple[str, int | None]:
    """The host and the port of ``example.org``, ``example.org:443`` or ``[::1]:443``.

    Raises:
        ValueError: It is neither.
    """
    if _is_address(text):
        return text, None
    found = _HOST.fullmatch(text)
    host = (found["bracketed"] or found["name"]) if found else ""
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (found["bracketed"] and not _is_address(host)) or port in (0, *_TOO_HIGH):
        raise ValueError(
            f"'{text}' is not a host; write example.org, or example.org:443 for one port, without "
            "http:// and *"
        )
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        raise ValueError(f"'{text}': a server that listens on {host} is reached at localhost")
    return host, port


_TOO_HIGH = range(65536, 100_000)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _checked_host(text: str) -> str:
    host_and_port(text)
    return text


def _network(value: Any) -> Any:
    """Refuse in one sentence what is neither of the words nor a list."""
    if isinstance(value, str) and value not in ("none", "loopback"):
        raise ValueError(f"write none, loopback or a list of hosts: ['{value}']")
    if value is None or value in ((), []):
        raise ValueError("write none, loopback or a list of hosts; sandbox: null has no walls")
    return value


Hosts = tuple[Annotated[str, AfterValidator(_checked_host)], ...]


class ToolSandboxConfig(SandboxConfig):
    """A sandbox without file writes, with limited memory, and a network of the listed hosts."""

    network: Annotated[Literal["none", "loopback"] | Hosts, BeforeValidator(_network)] = Field(
        "none",
        description="Servers that it may reach over TCP by Python's socket module. loopback: all "
        "of this machine's 127.0.0.1; or a list of hosts, each with a port if only that one is "
        "meant: [localhost:9000, example.org:443]",
    )

    @property
    def hosts(self) -> tuple[tuple[str, int | None], ...]:
        """What may be reached: hosts with a port, or None for all ports."""
        if self.network == "none":
            return ()
        if self.network == "loopback":
            return (("localhost", None),)
        return tuple(map(host_and_port, self.network))


class EnvironmentConfig(EnvironmentSection):
    """Answers the policy between its turns. Without it a completion is one turn."""

    builder: ClassVar[str] = "mmr1.rollout.build:conversation_engine"
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
    boxes: Literal["resized", "original", "0-1000", "0-1"] = Field(
        "resized",
        description="Scale of a box's numbers; resized: pixels as the model saw the picture, "
        "original: its own pixels",
    )
    timeout_s: Coefficient = Field(
        5.0, description="Seconds allowed for one call; then its process is killed"
    )
    workers: Positive = Field(2, description="Processes that tools run in")
    sandbox: ToolSandboxConfig | None = Field(
        ToolSandboxConfig(),
        description="Where tools of your own run; null: without walls, for those that write files, "
        "start programs, use a GPU or hold a client that is not written in Python",
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


class CustomEnvironmentConfig(EnvironmentConfig):
    """An environment of your own."""

    type: Literal["custom"] = "custom"
    use: str = Field(
        description="file.py:Class with reset(sample) and step(action), or another project's "
        "environment"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments")

    @property
    def specs(self) -> tuple[str, ...]:
        """The class, by its name."""
        return (self.use,)

    @property
    def arguments(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return self.options


OF_PACKAGES = Registry("environment type", {}, group="mmr1.environment_types", attribute="NAME")
"""Each is an :class:`EnvironmentSection`."""

if TYPE_CHECKING:
    Environment = EnvironmentSection
else:
    _loaded = map(OF_PACKAGES.load, sorted(OF_PACKAGES.names()))
    _types = Union[(ToolsConfig, CustomEnvironmentConfig, *_loaded)]
    Environment = Annotated[_types, Field(discriminator="type")]
