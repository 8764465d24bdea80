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
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from PIL import Image

from mmr1.environments.forms.own import awaited
from mmr1.types import Sample

_METHODS = ("create", "execute", "release")
_numbers = count()


class BrokenToolError(ValueError):
    """A tool returned another form: the tool's fault, not that of a call."""


def is_tool_config(spec: str) -> bool:
    """True for a name of a YAML file, and not of a function."""
    return spec.endswith((".yaml", ".yml"))


@cache
def load_tools(file: str) -> dict[str, Any]:
    """The tools of a YAML file, by name.

    Raises:
        ValueError: It has another form, or a class cannot be made.
    """
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


def schema_of(tool: Any) -> dict[str, Any]:
    """The schema of a tool for the policy. Raises ValueError if it is not a function's schema."""
    schema = tool.get_openai_tool_schema()
    if hasattr(schema, "model_dump"):
        schema = schema.model_dump(exclude_unset=True, exclude_none=True)
    if not isinstance(schema, dict) or "name" not in schema.get("function", {}):
        raise ValueError("get_openai_tool_schema returned no schema of a function")
    return schema


def sees_pictures(tool: Any) -> bool:
    """True if ``execute`` reads ``agent_data``, which has the pictures of the conversation."""
    function = inspect.unwrap(tool.execute)
    names = (function.__code__.co_varnames, function.__code__.co_consts)
    return any("agent_data" in of for of in names)


class VerlEpisode:
    """The tools of a YAML file in one conversation."""

    def __init__(self, file: str) -> None:
        self._tools = load_tools(file)
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
        tool.name = schema_of(tool)["function"]["name"]
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
