"""The front for agents refuses what is no request, in one line, before it reads a body."""

from __future__ import annotations

import http.client
import json
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from mmr1_contrib.agents.server import AgentServer

KEY = {"Authorization": "Bearer key"}
JSON = {"Content-Type": "application/json"}
SILENT = 560
HELLO = {"role": "user", "content": "hello"}


class Accepting:
    """A session that takes every request that is one, and has no answer."""

    def ask(self, body: Any, retried: bool) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_exception(ValueError("taken"))
        return answer


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))  # the front's, as is usual
    server = AgentServer(lambda key: Accepting() if key == "key" else None)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    yield server.base_url.removeprefix("http://").removesuffix("/v1")
    server.close()


def ask(address: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
    """The status and the message of the answer; without a body it is announced and not sent."""
    connection = http.client.HTTPConnection(address, timeout=60)
    length = {"Content-Length": "1000"} if body is None else {}
    connection.putrequest("POST", "/v1/chat/completions", skip_host="Host" in headers)
    for name, value in {**headers, **length}.items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    connection.close()
    return answer.status, error["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 401),
        ({**JSON, "Authorization": "Bearer another"}, 401),
        ({**JSON, **KEY, "Host": "elsewhere.example"}, 421),
        ({**JSON, **KEY, "Origin": "http://elsewhere.example"}, 403),
        ({**KEY, "Content-Type": "text/plain"}, 415),
    ],
)
def test_a_request_is_refused_before_its_body_is_read(headers, status, address):
    assert ask(address, None, headers)[0] == status


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 5000,
        b"[]",
        b"null",
        b'{"messages": [], "max_tokens": NaN}',
        *(
            json.dumps(body).encode()
            for body in (
                {},
                {"messages": "hello"},
                {"messages": ["hello"]},
                {"messages": [{"role": 1}]},
                {"messages": [{**HELLO, "content": 1}]},
                {"messages": [{**HELLO, "content": ["hello"]}]},
                {"messages": [{"role": "assistant", "tool_calls": 3}]},
                {"messages": [{"role": "tool", "content": "a", "tool_call_id": {}}]},
                {"messages": [HELLO], "max_tokens": {}},
                {"messages": [HELLO], "max_completion_tokens": "many"},
                {"messages": [HELLO], "stream_options": 1},
                {"messages": [HELLO], "tools": 5},
                {"messages": [HELLO], "n": [1]},
            )
        ),
    ],
)
def test_a_malformed_body_is_one_line(body, address):
    status, message = ask(address, body, {**JSON, **KEY})
    assert status == 400
    assert message
    assert message != "taken"
    assert "\n" not in message


REQUEST = json.dumps({"messages": [HELLO], "max_tokens": 5, "stream": True}).encode()


def test_a_request_is_passed_on(address):
    assert ask(address, REQUEST, {**JSON, **KEY}) == (400, "taken")


def test_silent_connections_take_nothing_from_the_trainer(address):
    host, _, port = address.partition(":")
    ask(address, REQUEST, {**JSON, **KEY})
    before = psutil.Process().num_fds()
    with ExitStack() as held:
        for _ in range(SILENT):
            held.enter_context(socket.create_connection((host, int(port))))
        assert ask(address, REQUEST, {**JSON, **KEY}) == (400, "taken")
        assert psutil.Process().num_fds() == before + SILENT  # the ends of this client


def test_a_front_that_dies_is_replaced(address):
    (front,) = [
        p for p in psutil.Process().children() if "mmr1_contrib.agents.front" in p.cmdline()
    ]
    front.kill()
    front.wait()
    assert ask(address, REQUEST, {**JSON, **KEY}) == (400, "taken")
