"""Stand-ins for the base classes that tool files import from trainers not installed here.

Their base classes hold no state and run nothing: a name to inherit from is all that they give.
Only the processes of tools have these modules.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict


class AgentInstanceBase:
    """OpenRLHF's base of an environment."""

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        return states


class AgentExecutorBase:
    """OpenRLHF's base class that runs a conversation."""

    async def execute(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


class MultiTurnAgentExecutor(AgentExecutorBase):
    """OpenRLHF's executor, which holds the class of the environment."""

    def __init__(self, agent_instance_cls: type) -> None:
        self.agent_instance_cls = agent_instance_cls


class SingleTurnAgentExecutor(AgentExecutorBase):
    """OpenRLHF's executor without an environment."""


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
    c.__name__: c
    for c in (
        OpenAIFunctionPropertySchema,
        OpenAIFunctionParametersSchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolSchema,
        ToolResponse,
    )
}
_MODULES: dict[str, dict[str, Any]] = {
    "openrlhf": {},
    "openrlhf.utils": {},
    "openrlhf.utils.agent": {
        c.__name__: c
        for c in (
            AgentInstanceBase,
            AgentExecutorBase,
            MultiTurnAgentExecutor,
            SingleTurnAgentExecutor,
        )
    },
    "verl": {},
    "verl.tools": {},
    "verl.tools.base_tool": {"BaseTool": BaseTool, **_SCHEMAS},
    "verl.tools.schemas": _SCHEMAS,
    "verl.utils": {},
    "verl.utils.rollout_trace": {"rollout_trace_op": rollout_trace_op},
}


def provide_base_classes() -> None:
    """Put the modules in place of packages that are not installed."""
    for package in ("openrlhf", "verl"):
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            continue
        for name, content in _MODULES.items():
            if name.partition(".")[0] == package:
                module = ModuleType(name)
                module.__path__ = []  # others of its modules are then not found
                vars(module).update(content)
                sys.modules[name] = module
