"""MCP servers as tools: over stdio and over HTTP."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("mcp", reason="mcp is not installed")

from mmr1.config import ToolsConfig
from mmr1.environments.environment import Action
from mmr1.environments.schemas import tool_schemas
from mmr1.environments.tools import ToolEnvironment
from mmr1.serving import http_server, listen
from mmr1.types import MediaRef, Sample, TextPart
from tests.environments.mcp_server import server

PROGRAM = Path(__file__).with_name("mcp_server.py")
TURN = (
    '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    '<tool_call>{"name": "paint", "arguments": {"red": 200}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"a": "two"}}</tool_call>'
    '<tool_call>{"name": "clear"}</tool_call>'
    '<tool_call>{"name": "draw"}</tool_call>'
)


@pytest.fixture(params=["stdio", "http"])
def servers(request, tmp_path):
    """A file that lists a server, which is there."""
    listed = {"command": sys.executable, "args": [str(PROGRAM)]}
    if request.param == "http":
        socket = listen("127.0.0.1", 0)
        served = http_server(server.streamable_http_app())
        thread = threading.Thread(target=served.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        listed = {"url": f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"colours": listed}}))
    yield str(file)
    if request.param == "http":
        served.should_exit = True
        thread.join()
        socket.close()


def test_a_turn_calls_its_tools_and_sees_their_pictures(servers):
    config = ToolsConfig(tools=(servers, "calculate"), sandbox=None, workers=1, timeout_s=60)
    names = [schema["function"]["name"] for schema in tool_schemas(config)]
    assert names == ["add", "paint", "draw", "clear", "wait", "calculate"]
    environment = ToolEnvironment(config)
    episode = environment.episode(Sample("1", ()))
    answer = episode.step(Action(TURN, (), False))
    environment.close()
    added, painted, failed, cleared, drawn = answer.messages
    assert added.parts == (TextPart("5"),)
    for message, colour in ((painted, (200, 0, 0)), (cleared, (255, 255, 255))):
        (picture,) = message.parts
        assert isinstance(picture, MediaRef)
        assert Image.open(io.BytesIO(picture.read())).getpixel((0, 0)) == colour
    assert "Error" in failed.text
    assert "not an image (PNG, " in drawn.text  # as a run reads none: Pillow runs Ghostscript
    assert [call.error is None for call in answer.calls] == [True, True, False, True, False]


def test_the_sandbox_starts_no_program_and_asks_urls(servers):
    (listed,) = json.loads(Path(servers).read_text())["mcpServers"].values()
    config = ToolsConfig(tools=(servers,), workers=1, timeout_s=60)
    if "command" in listed:
        with pytest.raises(ValueError, match=r"'colours' is a program.* environment\.sandbox=null"):
            tool_schemas(config)
        return
    environment = ToolEnvironment(config)
    answer = environment.episode(Sample("1", ())).step(Action(TURN, (), False))
    environment.close()
    assert answer.messages[0].parts == (TextPart("5"),)
    assert isinstance(answer.messages[1].parts[0], MediaRef)


def test_a_slow_server_costs_its_call_alone(servers):
    sleep = '<tool_call>{"name": "wait", "arguments": {"seconds": 30}}</tool_call>'
    add = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    config = ToolsConfig(tools=(servers,), workers=1, timeout_s=2, sandbox=None)
    environment = ToolEnvironment(config)
    for turn, told in ((sleep, "Error: no answer in 2 s"), (add, "5")):
        answer = environment.episode(Sample("1", ())).step(Action(turn, (), False))
        assert answer.messages[0].text == told
    environment.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "mcpServers"),
        ('{"mcpServers": {"a": {"url": "http://127.0.0.1:9/mcp"}}}', "'a' cannot be reached"),
        ('{"mcpServers": {"a": {"program": "/no/such"}}}', "a has neither url nor command"),
        ('{"mcpServers": {"a": {"command": "/no/such"}}}', "the MCP server 'a' cannot be reached"),
    ],
)
def test_a_server_that_is_not_there_is_named(tmp_path, text, reason):
    file = tmp_path / "servers.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason):
        tool_schemas(ToolsConfig(tools=(str(file),), sandbox=None))
