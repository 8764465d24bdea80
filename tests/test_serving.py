"""Servers within limits: silent connections end, and none takes what a run needs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mmr1 import serving

HOLD_S = 15.0
"""Seconds after which a connection that is still open fails its test."""


async def _size(request: Request) -> Response:
    return PlainTextResponse(str(len(await serving.read_body(request, 100))))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server of at most four connections, with a second for headers and for a body."""
    monkeypatch.setattr(serving, "HEADERS_S", 1.0)
    monkeypatch.setattr(serving, "BODY_S", 1.0)
    monkeypatch.setattr(serving.resource, "getrlimit", lambda _: (4 * serving.SHARE, 0))
    server = serving.http_server(Starlette(routes=[Route("/", _size, methods=["POST"])]))
    with serving.listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=HOLD_S)


def whole_answer(connection: socket.socket) -> bytes:
    """What comes until the server closes; empty if it closes without a word."""
    answer = b""
    try:
        while part := connection.recv(1000):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def asked(port: int, head: str, body: bytes = b"") -> bytes:
    with connect(port) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + body)
        return whole_answer(connection)


def status(answer: bytes) -> Any:
    return int(answer.split()[1])


def test_an_answered_connection_is_closed_when_it_is_silent(port):
    assert asked(port, "Content-Length: 3", b"abc").endswith(b"3")


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost:"])
def test_a_connection_without_a_request_is_closed(sent, port):
    with connect(port) as connection:
        connection.sendall(sent)
        assert whole_answer(connection) == b""


def test_silent_connections_beyond_the_limit_make_room(port, monkeypatch):
    monkeypatch.setattr(serving, "HEADERS_S", 1000.0)
    silent = [connect(port) for _ in range(8)]
    assert status(asked(port, "Connection: close\r\nContent-Length: 3", b"abc")) == 200
    for connection in silent[:4]:
        assert whole_answer(connection) == b""
    for connection in silent:
        connection.close()


def test_a_body_that_does_not_come_is_given_up(port):
    assert status(asked(port, "Content-Length: 3", b"a")) == 408


@pytest.mark.parametrize("head", ["Content-Length: 101", "Transfer-Encoding: chunked"])
def test_a_long_body_is_refused(head, port):
    body = b"" if "Length" in head else b"65\r\n" + b"a" * 101 + b"\r\n0\r\n\r\n"
    assert status(asked(port, head, body)) == 413
