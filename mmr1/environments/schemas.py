"""JSON schemas of tools, from their type hints and docstrings.

Made by transformers in a sandboxed process: a file of tools is imported nowhere else.
"""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mmr1.config import EnvironmentConfig, OwnEnvironment
from mmr1.environments import worker
from mmr1.environments.custom import load_environment
from mmr1.environments.interpreter import python
from mmr1.environments.mcp_servers import (
    PROGRAM,
    URL,
    for_processes,
    is_server_list,
    servers_of,
)
from mmr1.environments.styles import ToolClass, is_tool_file, tool_file
from mmr1.environments.worker import check_parser, load_functions, media_parameters, shows_pictures
from mmr1.environments.workers import readable_of
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.walls import GIB, Limits
from mmr1.section import EnvironmentSection

_LIMITS = Limits(memory=64 * GIB, open_files=256)  # transformers imports torch


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, as the parent process knows it.

    Attributes:
        spec: Name in the configuration.
        name: Name by which the policy calls it.
        schema: JSON schema that the policy is told.
        media: The parameters that are given media, and which.
        kept: It keeps something from call to call, so each conversation has one of its own.
        sees_pictures: It is given all pictures of the conversation.
        alone: A process serves one call of it.
        shows: Does it return pictures, by its type hint?
        remote: It is a tool of an MCP server with a url, which this process asks.
    """

    spec: str
    name: str
    schema: dict[str, Any]
    media: dict[str, str]
    kept: bool = False
    sees_pictures: bool = False
    alone: bool = False
    shows: bool = False
    remote: bool = False


def warm_up(walls: bool) -> None:
    """Import transformers in the zygote, as it takes longer than all the rest."""
    importlib.import_module("transformers.utils.chat_template_utils")
    worker.warm_up(walls)


def tool_schemas(config: EnvironmentSection | None) -> list[dict[str, Any]]:
    """The schemas of an environment's tools; none without one, or without such tools."""
    if not isinstance(config, EnvironmentConfig):
        return []
    return [tool.schema for tool in described(config)]


def described(config: EnvironmentConfig) -> list[Tool]:
    """The tools of an environment; none where an environment reads the text of a turn.

    Raises:
        ValueError: A tool cannot be loaded, or lacks type hints or a docstring. The parser cannot
            be loaded, or does not read an empty turn.
    """
    own = isinstance(config, OwnEnvironment)
    walls = config.sandbox is not None
    specs = for_processes(config.specs, walls)
    files = (*specs, *([config.parser] if config.parser else []))
    readable = tuple(path for spec in files for path in readable_of(spec, config))
    options = json.dumps(config.arguments, sort_keys=True)
    own_tools = _described(specs, own, options, config.parser, readable, walls) if files else {}
    tools = []
    for spec in config.specs:
        if is_server_list(spec):
            tools += [Tool(**tool, remote=True) for tool in _of_servers(spec, URL)]
        tools += own_tools.get(spec, ())
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"environment.tools has two tools named '{twice}'; rename one")
    return tools


@lru_cache(8)
def _described(
    specs: tuple[str, ...],
    own: bool,
    options: str,
    parser: str | None,
    readable: tuple[str, ...],
    walls: bool,
) -> dict[str, list[Tool]]:
    job = Job("mmr1.environments.schemas:describe", (specs, own, json.loads(options), parser))
    warm = Job("mmr1.environments.schemas:warm_up", (walls,))
    of_pool: Any = {"limits": _LIMITS, "readable": readable, "walls": walls}
    with Pool(1, warm=warm, prepare=job, **of_pool) as pool:
        return {spec: [Tool(**tool) for tool in tools] for spec, tools in pool.start().items()}


def describe(
    specs: Sequence[str], own: bool, options: Mapping[str, Any], parser: str | None
) -> dict[str, list[dict[str, Any]]]:
    """The fields of each :class:`Tool`, by what names them. Runs in the sandbox.

    Args:
        own: They name an environment, which has tools if its methods are some.
        options: Options of that environment.
        parser: Parser of the calls of a turn, to be checked; None for Qwen's form.
    """
    if parser is not None:
        check_parser(parser)
    return {spec: _describe(spec, own, options) for spec in specs}


def _describe(spec: str, own: bool, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if is_tool_file(spec):
        file = tool_file(spec)
        return [
            {
                "spec": spec,
                "name": name,
                "schema": schema,
                "media": {},
                "kept": True,
                "sees_pictures": name in file.receives_images,
            }
            for name, schema in file.schemas.items()
        ]
    if is_server_list(spec):
        return _of_servers(spec, PROGRAM)
    functions = _methods(spec, options) if own else load_functions(spec)
    return [
        {
            **_of_function(spec, function, method=own),
            # The processes that serve it can read no file that lists it.
            "spec": "python" if function is python else spec,
            "kept": own,
            "alone": function is python,
        }
        for function in functions.values()
    ]


def _methods(spec: str, options: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """Return the methods of an environment that are tools, by name."""
    environment = load_environment(spec, options)
    return environment.tools if isinstance(environment, ToolClass) else {}


def _of_servers(spec: str, kind: str) -> list[dict[str, Any]]:
    return [
        {"spec": spec, "name": name, "schema": schema, "media": {}, "shows": True}
        for name, schema in servers_of(spec, kind).schemas.items()
    ]


def _of_function(spec: str, tool: Callable[..., Any], *, method: bool) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    media = media_parameters(tool)
    numbered = _with_numbers(tool, media)
    try:
        schema = get_json_schema(types.MethodType(numbered, object()) if method else numbered)
    except Exception as error:  # its own kinds of errors
        raise ValueError(f"the tool '{spec}', {tool.__name__}: {error}") from error
    function = schema["function"]
    parameters = function["parameters"]
    required = [name for name in parameters.get("required", ()) if name not in media]
    for name, kind in media.items():
        shown = "video" if kind == "video" else "picture"
        parameters["properties"][name] = {
            "type": "integer",
            "description": f"Number of the {shown} in the conversation, from 0. The first one if "
            "left out",
        }
    function["parameters"] = {**parameters, "required": required}
    function.pop("return", None)
    return {
        "spec": spec,
        "name": function["name"],
        "schema": schema,
        "media": media,
        "shows": shows_pictures(tool),
    }


def _with_numbers(tool: Any, media: dict[str, str]) -> Any:
    """The function with numbers in place of media: what the policy writes."""
    copy = types.FunctionType(
        tool.__code__, tool.__globals__, tool.__name__, tool.__defaults__, tool.__closure__
    )
    copy.__doc__, copy.__kwdefaults__ = tool.__doc__, tool.__kwdefaults__
    numbers = dict.fromkeys(media, int)
    copy.__annotations__ = {
        name: numbers.get(name, hint)
        for name, hint in tool.__annotations__.items()
        if name != "return"
    }
    return copy
