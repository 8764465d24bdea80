"""Styles of tools and environments: how other projects write theirs.

mmr1 has one of its own, ``mmr1.environments.custom``. Packages declare others as entry points in
the group ``mmr1.tool_styles``. All but the declarations run in the processes of tools.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Protocol

from mmr1.registry import Registry
from mmr1.types import Sample


@dataclass(frozen=True, slots=True)
class StepResult:
    """An environment's answer to a turn.

    Attributes:
        observation: Texts and images for the policy.
        done: True if the conversation is over.
        reward: Number, or None.
        verbatim: True if the observation's text has the chat template's own tokens.
    """

    observation: Any
    done: bool
    reward: Any
    verbatim: bool = False


class SpokenEpisode(Protocol):
    """One conversation with an environment that reads the text of a turn."""

    def reset(self, sample: Sample, prompt: str) -> None: ...

    def step(self, action: str) -> StepResult: ...


class ToolEpisode(Protocol):
    """One conversation with tools that have a state."""

    def begin(self, sample: Sample) -> str:
        """Begin; returns an addition to the last message of the user."""
        ...

    def call(
        self, name: str, arguments: Mapping[str, Any], images: Sequence[bytes]
    ) -> tuple[Any, Any]:
        """Call a tool; returns its result, and a reward or None.

        Raises:
            BrokenToolError: If the tool returns what its style does not allow.
        """
        ...

    def end(self) -> Any:
        """End; returns a reward for the whole conversation, or None."""
        ...


class BrokenToolError(ValueError):
    """A tool returned what its style does not allow: the tool's fault, not that of a call."""


@dataclass(frozen=True, slots=True)
class ToolFile:
    """A file of tools that ``environment.tools`` names.

    Attributes:
        schemas: JSON schema of each tool, by name.
        receives_images: Names of the tools that get all images of the conversation.
        episode: Makes a conversation with the tools.
    """

    schemas: Mapping[str, dict[str, Any]]
    receives_images: frozenset[str]
    episode: Callable[[], ToolEpisode]


@dataclass(frozen=True, slots=True)
class SpokenEnvironment:
    """An environment that reads the text of a turn.

    Attributes:
        factory: Class or function that is called with the environment's settings.
        episode: Makes a conversation with it.
    """

    factory: Callable[..., Any]
    episode: Callable[[], SpokenEpisode]


@dataclass(frozen=True, slots=True)
class ToolClass:
    """An environment whose methods are tools.

    Attributes:
        factory: Class or function that is called with the environment's settings.
        tools: Function behind each method, by name.
        episode: Makes a conversation with an object of its own.
    """

    factory: Callable[..., Any]
    tools: Mapping[str, Callable[..., Any]]
    episode: Callable[[], ToolEpisode]


@dataclass(frozen=True)
class Candidate:
    """Environment that ``environment.type`` names, before its style is known.

    Attributes:
        spec: Name in the configuration.
        found: Object behind the name.
        options: The environment's settings.
    """

    spec: str
    found: Any
    options: Mapping[str, Any]

    @cached_property
    def shown(self) -> Any:
        """The class; or an object that the function makes.

        Raises:
            ValueError: If the function cannot be called with the options.
        """
        if inspect.isclass(self.found):
            return self.found
        try:
            return self.found(**self.options)
        except TypeError as error:
            names = ", ".join(self.options)
            given = f"the settings {names}" if names else "no arguments"
            raise ValueError(
                f"it is not a class, and cannot be called with {given}: {error}"
            ) from error

    def parameters(self, method: str) -> list[inspect.Parameter] | None:
        """Return the parameters of a method without ``self``; None if there is no such method."""
        function = getattr(self.shown, method, None)
        if not callable(function):
            return None
        return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


def required(parameters: Sequence[inspect.Parameter]) -> list[str]:
    """Return the names of the positional parameters that have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a project writes its tools and environments.

    Attributes:
        name: Name of the project, for messages.
        signatures: Signatures of its environments, for messages.
        environment: Returns the environment, or None if it is not of this style.
        suffixes: Endings of its files in ``environment.tools``.
        tool_file: Reads such a file.
        modules: Content of the modules that its files import their base classes from, by name. They
            stand in for a package that is not installed.
    """

    name: str
    signatures: tuple[str, ...] = ()
    environment: Callable[[Candidate], SpokenEnvironment | ToolClass | None] = lambda found: None
    suffixes: tuple[str, ...] = ()
    tool_file: Callable[[str], ToolFile] | None = None
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


TOOL_STYLES = Registry("tool style", {}, group="mmr1.tool_styles", attribute="STYLE")
"""Each is a :class:`ToolStyle`."""


@cache
def tool_styles() -> list[ToolStyle]:
    """Return the declared styles in the order of their names, which is that of recognition."""
    return [TOOL_STYLES.load(name) for name in sorted(TOOL_STYLES.names())]


def is_tool_file(spec: str) -> bool:
    """Return whether ``environment.tools`` names a file of a declared style, and no function."""
    return any(spec.endswith(style.suffixes) for style in tool_styles())


@cache
def tool_file(spec: str) -> ToolFile:
    """Read a file of tools.

    Raises:
        ValueError: If its style cannot read it.
    """
    style = next(style for style in tool_styles() if spec.endswith(style.suffixes))
    assert style.tool_file is not None
    return style.tool_file(spec)


def provide_modules() -> None:
    """Put the modules of the styles in place of packages that are not installed."""
    for style in tool_styles():
        packages = {name.partition(".")[0] for name in style.modules}
        for package in packages - sys.modules.keys():
            if importlib.util.find_spec(package) is None:
                _provide({n: m for n, m in style.modules.items() if n.partition(".")[0] == package})


def _provide(modules: Mapping[str, Mapping[str, Any]]) -> None:
    for name, content in modules.items():
        module = ModuleType(name)
        module.__path__ = []  # others of its modules are then not found
        vars(module).update(content)
        sys.modules[name] = module


def awaited(value: Any) -> Any:
    """Return the result of a call; a coroutine is run to its end.

    All run in one loop, as what an environment keeps may belong to it.
    """
    return _loop().run_until_complete(value) if inspect.iscoroutine(value) else value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
