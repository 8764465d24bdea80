"""Tools of MCP servers: programs that are started, or servers on the network.

A file lists them as editors do: ``{"mcpServers": {"maps": {"command": "maps-mcp", "args": []},
"search": {"url": "http://127.0.0.1:9000/mcp"}}}``. Each process of the environment has connections
of its own, which end with it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmr1.types import MediaRef
from mmr1.vision.images import load_image


def is_server_list(spec: str) -> bool:
    """True for a file that lists MCP servers."""
    return spec.endswith(".json")


@lru_cache(8)
def servers_of(spec: str) -> Servers:
    """The servers of a file, connected.

    Raises:
        ValueError: The file cannot be read, or a server not reached.
    """
    try:
        targets = {name: _target(server) for name, server in _listed(spec).items()}
    except ImportError as error:
        raise ValueError(f"{error}; MCP servers need mcp: pip install 'mmr1[mcp]'") from error
    return Servers(spec, targets)


def check_reachable(spec: str, network: bool) -> None:
    """Check that tools behind walls can use the servers of a file.

    Args:
        network: The tools may reach hosts.

    Raises:
        ValueError: They cannot, or the file cannot be read.
    """
    servers = _listed(spec)
    if started := next((name for name, server in servers.items() if "url" not in server), None):
        raise ValueError(
            f"environment.tools '{spec}': the MCP server '{started}' is a program, which the "
            "sandbox does not start; set environment.sandbox=null, or start it yourself and give "
            "its url"
        )
    if servers and not network:
        raise ValueError(
            f"environment.tools '{spec}': the sandbox has no network; list the hosts of the MCP "
            "servers in environment.sandbox.network, or set environment.sandbox=null"
        )


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


def _target(server: Mapping[str, Any]) -> Any:
    if "url" in server:
        return str(server["url"])
    from mcp import StdioServerParameters

    fields = {name: server[name] for name in ("command", "args", "env", "cwd") if name in server}
    return StdioServerParameters(**fields)


class Servers:
    """Connected servers; their event loop has a separate thread.

    Attributes:
        schemas: Of each tool, as the chat template takes it.
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

    def call(self, name: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call a tool; returns texts and pictures.

        Raises:
            ValueError: The tool says that it failed, or answers with something else.
        """
        result = self._wait(self._clients[name].call_tool(name, dict(arguments)))
        parts = [_part(content) for content in result.content]
        if result.is_error:
            raise ValueError(" ".join(part for part in parts if isinstance(part, str)))
        return parts

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


def _part(content: Any) -> Any:
    if content.type == "text":
        return content.text
    if content.type == "image":
        return load_image(MediaRef("image", data=base64.b64decode(content.data)))
    if content.type == "resource" and getattr(content.resource, "text", None) is not None:
        return content.resource.text
    raise ValueError(f"it answered with {content.type}, which the policy cannot read")
