"""JSON schemas of tools, from their type hints and docstrings.

Made by transformers in a sandboxed process: a file of tools is imported nowhere else.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mmr1.config import EnvironmentConfig
from mmr1.config.environment import TOOLS
from mmr1.environments.worker import load_tool, media_parameters
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.limits import GIB, Limits
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.readable import plugin_paths

_LIMITS = Limits(memory=64 * GIB, open_files=256)  # transformers imports torch


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, as the parent process knows it.

    Attributes:
        spec: As the configuration names it.
        name: As the policy calls it.
        schema: What the policy is told.
        media: The parameters that are given media, and which.
    """

    spec: str
    name: str
    schema: dict[str, Any]
    media: dict[str, str]


def tool_schemas(config: EnvironmentConfig | None) -> list[dict[str, Any]]:
    """The schemas of an environment's tools; none without one, or without tools."""
    return [] if config is None else [tool.schema for tool in described(config)]


def described(config: EnvironmentConfig) -> list[Tool]:
    """The tools of an environment; none for an environment of one's own.

    Raises:
        ValueError: A tool cannot be loaded, or lacks type hints or a docstring.
    """
    if config.use != TOOLS:
        return []
    readable = tuple(p for spec in config.tools for p in plugin_paths(spec, config.readable))
    tools = _described(config.tools, readable, config.start_timeout_s)
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"environment.tools has two tools named '{twice}'; rename one")
    return tools


@lru_cache(8)
def _described(specs: tuple[str, ...], readable: tuple[str, ...], start_s: float) -> list[Tool]:
    job = Job("mmr1.environments.schemas:describe", (specs,))
    warm = Job("mmr1.environments.schemas:warm", ())
    with Pool(
        1, warm=warm, prepare=job, limits=_LIMITS, readable=readable, start_s=start_s
    ) as pool:
        return [Tool(**tool) for tool in pool.start()]


def warm() -> None:
    """What the zygote runs."""
    import transformers.utils.chat_template_utils  # noqa: F401


def describe(specs: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of each :class:`Tool`. Runs in the sandbox."""
    return [_describe(spec) for spec in specs]


def _describe(spec: str) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    tool = load_tool(spec)
    media = media_parameters(tool)
    try:
        schema = get_json_schema(_with_numbers(tool, media))
    except Exception as error:  # its own kinds of errors
        raise ValueError(f"the tool '{spec}': {error}") from error
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
    return {"spec": spec, "name": function["name"], "schema": schema, "media": media}


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
