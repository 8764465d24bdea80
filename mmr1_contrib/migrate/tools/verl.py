"""verl's tools: classes of the form of ``BaseTool``, named in the YAML of ``tool_config_path``.

An instance is made for each conversation. ``execute`` may give a reward for a call, ``calc_reward``
one at the end. https://github.com/verl-project/verl: verl/tools/base_tool.py
"""

from __future__ import annotations

import importlib
import inspect
import io
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import yaml
from PIL import Image
from pydantic import BaseModel, ConfigDict

from mmr1.environments.styles import BrokenToolError, ToolFile, ToolStyle, awaited
from mmr1.types import Sample

_METHODS = ("create", "execute", "release")
_numbers = count()


def read_tool_file(file: str) -> ToolFile:
    """Read the YAML file of ``tool_config_path``.

    Raises:
        ValueError: If it has another form, or a class cannot be made.
    """
    tools = _load_tools(file)
    schemas = {name: _schema(tool) for name, tool in tools.items()}
    receives = frozenset(name for name, tool in tools.items() if _receives_images(tool))
    return ToolFile(schemas, receives, lambda: VerlEpisode(tools))


def _load_tools(file: str) -> dict[str, Any]:
    """Return the tools of a YAML file, by name."""
    path = Path(file).expanduser()
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    entries = config.get("tools") if isinstance(config, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file} has no list 'tools', as verl's tool_config_path has")
    if str(path.parent.absolute()) not in sys.path:
        sys.path.append(str(path.parent.absolute()))
    tools: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        place = f"{file}: tools[{number}]"
        tool = _load_tool(entry, place)
        if tool.name in tools:
            raise ValueError(f"{place} is a second tool named '{tool.name}'")
        tools[tool.name] = tool
    return tools


def _schema(tool: Any) -> dict[str, Any]:
    """Return the schema of a tool for the policy.

    Raises:
        ValueError: If it is not a function's schema.
    """
    schema = tool.get_openai_tool_schema()
    if hasattr(schema, "model_dump"):
        schema = schema.model_dump(exclude_unset=True, exclude_none=True)
    if not isinstance(schema, dict) or "name" not in schema.get("function", {}):
        raise ValueError("get_openai_tool_schema returned no schema of a function")
    return schema


def _receives_images(tool: Any) -> bool:
    """Return whether ``execute`` reads ``agent_data``, which has the conversation's images."""
    function = inspect.unwrap(tool.execute)
    names = (function.__code__.co_varnames, function.__code__.co_consts)
    return any("agent_data" in of for of in names)


class VerlEpisode:
    """The tools of a YAML file in one conversation."""

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self._tools = tools
        self._ids: dict[str, Any] = {}
        self._options: Mapping[str, Any] = {}

    def begin(self, sample: Sample) -> str:
        """Make an instance of each tool, with the record's ``tools_kwargs``."""
        self._options = _tools_kwargs(sample)
        number = next(_numbers)
        for name, tool in self._tools.items():
            given = self._kwargs(name, "create_kwargs")
            created = _call(
                tool.create, f"{name}-{number}", **given, create_kwargs=given
            )  # verl's loops give them in either way
            self._ids[name] = created[0] if isinstance(created, tuple) else created
        return ""

    def call(
        self, name: str, arguments: Mapping[str, Any], images: Sequence[bytes]
    ) -> tuple[Any, Any]:
        """The answer of ``execute``, texts after pictures, and its reward."""
        given = self._kwargs(name, "execute_kwargs")
        data = SimpleNamespace(
            image_data=[Image.open(io.BytesIO(data)) for data in images],
            video_data=[],
            tools_kwargs=self._options,
            extra_fields={},
        )
        tool = self._tools[name]
        answered = _call(tool.execute, self._ids[name], dict(arguments), agent_data=data, **given)
        if not isinstance(answered, tuple) or len(answered) != 3:
            raise BrokenToolError("execute returned no (response, reward, metrics)")
        response, reward, _ = answered
        return _parts(response), reward

    def end(self) -> float:
        """The sum of the results of ``calc_reward``."""
        total = 0.0
        for name, instance in self._ids.items():
            tool = self._tools[name]
            if hasattr(tool, "calc_reward"):
                given = self._kwargs(name, "calc_reward_kwargs")
                total += float(_call(tool.calc_reward, instance, **given) or 0.0)
            _call(tool.release, instance, **self._kwargs(name, "release_kwargs"))
        return total

    def _kwargs(self, name: str, key: str) -> dict[str, Any]:
        return dict((self._options.get(name) or {}).get(key) or {})


def _load_tool(entry: Any, place: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
        raise ValueError(f"{place} has no class_name")
    config = dict(entry.get("config") or {})
    if config.get("type", "native") != "native":
        raise ValueError(
            f"{place}: config.type is {config['type']!r}; only native ones run. List an MCP server "
            "in environment.tools"
        )
    module, _, name = entry["class_name"].rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{place}: class_name {entry['class_name']!r}: {error}; put its module beside the YAML "
            "file, or on PYTHONPATH"
        ) from error
    missing = [m for m in _METHODS if not callable(getattr(found, m, None))]
    if missing:
        raise ValueError(f"{place}: {entry['class_name']} has no method {missing[0]}")
    schema = entry.get("tool_schema")
    try:
        tool = found(config=config, tool_schema=None if schema is None else _schema_class()(schema))
        tool.name = _schema(tool)["function"]["name"]
    except Exception as error:
        raise ValueError(f"{place}: {type(error).__name__}: {error}") from error
    return tool


def _schema_class() -> Any:
    from verl.tools.schemas import OpenAIFunctionToolSchema  # the package's own, or the stand-in

    return OpenAIFunctionToolSchema.model_validate


def _call(function: Any, *positional: Any, **keywords: Any) -> Any:
    """Call a function with those of the keywords that it takes."""
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        keywords = {name: value for name, value in keywords.items() if name in parameters}
    return awaited(function(*positional, **keywords))


def _tools_kwargs(sample: Sample) -> Mapping[str, Any]:
    extra = sample.meta.get("extra_info")
    found = sample.meta.get("tools_kwargs") or (
        extra.get("tools_kwargs") if isinstance(extra, Mapping) else None
    )
    return found if isinstance(found, Mapping) else {}


def _parts(response: Any) -> list[Any]:
    """Pictures, then the text, as verl's chat messages have them."""
    if isinstance(response, str) or response is None:
        return [response or ""]
    read = response.get if isinstance(response, Mapping) else lambda k: getattr(response, k, None)
    if read("video"):
        raise ValueError("a tool may show pictures, and no video")
    return [*(read("image") or ()), read("text") or ""]


# Stand-ins for what tool files import of verl. The base class gives a name to inherit from.


class _Open(BaseModel):
    """A schema that allows further keys."""

    model_config = ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Open):
    type: str | list[str]


class OpenAIFunctionParametersSchema(_Open):
    type: str
    properties: dict[str, OpenAIFunctionPropertySchema]


class OpenAIFunctionSchema(_Open):
    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema


class OpenAIFunctionToolSchema(_Open):
    """verl's schema of a tool."""

    type: str
    function: OpenAIFunctionSchema


class ToolResponse(BaseModel):
    """verl's answer of a tool."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """verl's base of a tool."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **_: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid4()), ToolResponse()

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **_: Any) -> None:
        """Do nothing: there is nothing to release."""


def rollout_trace_op(function: Any) -> Any:
    """verl's decorator for tracing; it traces nothing here."""
    return function


_SCHEMAS = {
    schema.__name__: schema
    for schema in (
        OpenAIFunctionPropertySchema,
        OpenAIFunctionParametersSchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolSchema,
        ToolResponse,
    )
}
STYLE = ToolStyle(
    "verl",
    suffixes=(".yaml", ".yml"),
    tool_file=read_tool_file,
    modules={
        "verl": {},
        "verl.tools": {},
        "verl.tools.base_tool": {"BaseTool": BaseTool, **_SCHEMAS},
        "verl.tools.schemas": _SCHEMAS,
        "verl.utils": {},
        "verl.utils.rollout_trace": {"rollout_trace_op": rollout_trace_op},
    },
)
