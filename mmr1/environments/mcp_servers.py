"""Tools of MCP servers: programs that are started, or servers on the network.

A file lists them as editors do: ``{"mcpServers": {"maps": {"command": "maps-mcp", "args": []},
"search": {"url": "http://127.0.0.1:9000/mcp"}}}``. The process of the run itself asks those with a
url, over one connection to each. Each process of the environment has programs of its own, which end
with it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any


def is_server_list(spec: str) -> bool:
    """True for a file that lists MCP servers."""
    return spec.endswith(".json")


PROGRAM, URL = "command", "url"
"""The kinds of servers, by the key that an entry of the file has."""


@lru_cache(8)
def servers_of(spec: str, kind: str) -> Servers:
    """The servers of a kind that a file lists, connected.

    Raises:
        ValueError: The file cannot be read, or a server not reached.
    """
    listed = _listed(spec)
    names = [name for name, server in listed.items() if _kind(server) == kind]
    if not names:
        return Servers(spec, {})
    try:
        targets = {name: _target(listed[name]) for name in names}
    except ImportError as error:
        raise ValueError(f"{error}; MCP servers need mcp: pip install 'mmr1[mcp]'") from error
    return Servers(spec, targets)


def for_processes(specs: Sequence[str], walls: bool) -> tuple[str, ...]:
    """The tools that the processes of an environment load: no list of servers with a url alone.

    Args:
        specs: Names of the tools in the configuration.
        walls: The processes have them.

    Raises:
        ValueError: A file cannot be read, or lists a program, which no sandbox starts.
    """
    return tuple(s for s in specs if not is_server_list(s) or _has_programs(s, walls))


def _has_programs(spec: str, walls: bool) -> bool:
    programs = [name for name, server in _listed(spec).items() if _kind(server) == PROGRAM]
    if programs and walls:
        raise ValueError(
            f"environment.tools '{spec}': the MCP server '{programs[0]}' is a program, which the "
            "sandbox does not start; set environment.sandbox=null, or start it yourself and give "
            "its url"
        )
    return bool(programs)


def _listed(spec: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        listed = json.loads(Path(spec).expanduser().read_text())["mcpServers"]
        if wrong := [n for n, s in listed.items() if not {"url", "command"} & set(s)]:
            raise ValueError(f"{wrong[0]} has neither url nor command")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{spec}: not {{"mcpServers": {{NAME: {{"command", "args", "env"}} or {{"url"}}}}}} '
            f"({type(error).__name__}: {error})"
        ) from error
    return dict(listed)


def _kind(server: Mapping[str, Any]) -> str:
    return URL if URL in server else PROGRAM


def _target(server: Mapping[str, Any]) -> Any:
    if _kind(server) == URL:
        return str(server[URL])
    from mcp import StdioServerParameters

    fields = {name: server[name] for name in ("command", "args", "env", "cwd") if name in server}
    return StdioServerParameters(**fields)


class Servers:
    """Connected servers; their event loop has a separate thread.

    Attributes:
        schemas: Schema of each tool, as the chat template takes it.
    """

    def __init__(self, spec: str, targets: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True).start()
        self._clients: dict[str, Any] = {}
        self.schemas: dict[str, dict[str, Any]] = {}
        self._stack = AsyncExitStack()
        for name, target in targets.items():
            try:
                self._wait(self._connect(target))
            except Exception as error:  # whatever its transport raises
                told = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"{spec}: the MCP server '{name}' cannot be reached: {told}"
                ) from error

    def call(
        self, name: str, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> list[str | bytes]:
        """Call a tool; returns texts, and pictures as their files.

        Args:
            name: Name of the tool.
            arguments: Arguments that the policy wrote.
            timeout_s: Longest wait for its answer; None: no limit.

        Raises:
            ValueError: If the server does not answer in time, cannot be reached, says that the call
                failed, or answers with something else.
        """
        asked = self._clients[name].call_tool(name, dict(arguments))
        try:
            result = self._wait(asyncio.wait_for(asked, timeout_s))
        except TimeoutError as error:
            raise ValueError(f"no answer in {timeout_s:g} s") from error
        except Exception as error:  # whatever its transport raises
            raise ValueError(f"{type(error).__name__}: {error}") from error
        contents = [_content(content) for content in result.content]
        if result.is_error:
            raise ValueError(" ".join(text for text in contents if isinstance(text, str)))
        return contents

    async def _connect(self, target: Any) -> None:
        from mcp import Client

        client = await self._stack.enter_async_context(Client(target))
        for tool in (await client.list_tools()).tools:
            if tool.name in self._clients:
                raise ValueError(f"another server has a tool '{tool.name}' too; list one of them")
            self._clients[tool.name] = client
            function = {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            }
            self.schemas[tool.name] = {"type": "function", "function": function}

    def _wait(self, made: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(made, self._loop).result()


def _content(content: Any) -> str | bytes:
    if content.type == "text":
        return str(content.text)
    if content.type == "image":
        return base64.b64decode(content.data)
    if content.type == "resource" and getattr(content.resource, "text", None) is not None:
        return str(content.resource.text)
    raise ValueError(f"it answered with {content.type}, which the policy cannot read")
