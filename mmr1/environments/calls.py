"""Reads the calls of tools in a turn of the policy, in the form of Qwen's chat templates.

``<tool_call>{"name": "zoom", "arguments": {"box": [0, 0, 28, 28]}}</tool_call>``, any number of
them. What cannot be read is a call with an error: the policy is told, as of any other failure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from mmr1.types import ToolCall

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_MAX_DEPTH = 32


def read_calls(text: str) -> list[ToolCall]:
    """The calls in a turn, in order.

    >>> read_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [ToolCall(name='add', arguments={'a': 1}, error=None)]
    >>> read_calls("<answer>7</answer>")
    []
    """
    return [_call(found[1], found[2]) for found in _CALL.finditer(text)]


def without_calls(text: str) -> str:
    """The text of a turn beside its calls.

    >>> without_calls('I add. <tool_call>{"name": "add"}</tool_call>')
    'I add. '
    """
    return _CALL.sub("", text)


def call_of(value: Any) -> ToolCall:
    """A call given as ``{"name": ..., "arguments": {...}}``; arguments may be JSON text."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return ToolCall("", error='a call is {"name": "...", "arguments": {...}}')
    name, arguments = value["name"], value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _json(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(name, error=f"the arguments are not valid JSON: {error}")
    if not isinstance(arguments, Mapping):
        return ToolCall(name, error="the arguments are not a JSON object")
    if _is_deep(arguments):
        return ToolCall(name, error="the arguments are nested too deep")
    return ToolCall(name, dict(arguments))


def _call(body: str, end: str) -> ToolCall:
    if not end:
        return ToolCall("", error="a <tool_call> without </tool_call>")
    try:
        value = _json(body)
    except (ValueError, RecursionError) as error:
        return ToolCall("", error=f"a call that is not valid JSON: {error}")
    return call_of(value)


def _json(text: str) -> Any:
    """Parse strict JSON, as calls are written into the records of the run."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:32]} is too large a number")
    return number


def _is_deep(value: Any) -> bool:
    """True if a value is nested too deeply to be sent to a process; without recursion."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
