"""A sandboxed worker's sockets, which the broker connects.

Python's ``socket`` module asks it, and with it ``urllib``, ``requests``, ``httpx``, ``asyncio`` and
whatever else is built on the module. A library that makes connections in C finds none.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any

from mmr1.rewards.sandbox.broker import LONGEST_S
from mmr1.rewards.sandbox.wire import LENGTH, recv_exactly

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
# What clients set before they connect.
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
)


def use_broker(line: socket.socket) -> None:
    """Have Python's sockets connected, and names looked up, by the broker at the other end."""
    lock = threading.Lock()
    connect_directly = socket.socket.connect

    def ask(*request: Any) -> tuple[Any, list[int]]:
        with lock:
            return _ask(line, request)

    def connect(self: socket.socket, address: Any) -> None:
        if self.family not in _FAMILIES:
            connect_directly(self, address)
            return
        timeout_s = self.gettimeout() or LONGEST_S
        _, (descriptor,) = ask("connect", self.family, address[0], address[1], timeout_s)
        _take_place(self, socket.socket(fileno=descriptor))

    def connect_ex(self: socket.socket, address: Any) -> int:
        try:
            connect(self, address)
        except OSError as error:
            if error.errno is None:
                raise
            return error.errno
        return 0

    def getaddrinfo(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        name, service = (v.decode() if isinstance(v, bytes) else v for v in (host, port))
        found, _ = ask("resolve", name, service, family, type, proto, flags)
        return [
            (socket.AddressFamily(f), socket.SocketKind(t), p, canonical, tuple(place))
            for f, t, p, canonical, place in found
        ]

    socket.socket.connect = connect  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = connect_ex  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = getaddrinfo


def _ask(line: socket.socket, request: Any) -> tuple[Any, list[int]]:
    """The broker's answer, and the descriptors with it. Raises OSError as the broker did."""
    try:
        (error, value), descriptors = _exchange(line, json.dumps(request).encode())
    except (EOFError, ConnectionError):
        os._exit(1)  # the broker is gone: the pool starts another one, and a worker with a line
    if error is not None:
        kind, code, told = error
        raise socket.gaierror(code, told) if kind == "gaierror" else OSError(code, told)
    return value, descriptors


def _exchange(line: socket.socket, body: bytes) -> tuple[Any, list[int]]:
    line.sendall(LENGTH.pack(len(body)) + body)
    head, descriptors, _, _ = socket.recv_fds(line, LENGTH.size, 1)
    head += recv_exactly(line, LENGTH.size - len(head))
    return json.loads(recv_exactly(line, LENGTH.unpack(head)[0])), descriptors


def _take_place(waiting: socket.socket, connected: socket.socket) -> None:
    """Put a connected socket where one waits for its connection, under its descriptor."""
    with connected:
        for level, option in _OPTIONS:
            connected.setsockopt(level, option, waiting.getsockopt(level, option))
        os.set_blocking(connected.fileno(), waiting.gettimeout() is None)
        os.dup2(connected.fileno(), waiting.fileno(), inheritable=False)
