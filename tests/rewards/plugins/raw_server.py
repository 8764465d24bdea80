"""A server that misbehaves on the wire: it has the socket and writes what it likes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Behaviour = Callable[[socket.socket], None]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DRIP_S = 60.0  # a drip lasts this long, many times any deadline of the tests


@contextmanager
def raw_server(behave: Behaviour, *, reads: bool = True) -> Iterator[str]:
    """Listen; give each connection to ``behave`` once its request was read. Yields the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                if reads:
                    _read_request(connection)
                behave(connection)
            except OSError:
                pass  # the client hung up, as it should

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/get_reward"
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(65536))
    return head


def replies(body: bytes, headers: bytes = b"") -> Behaviour:
    """Send this body, whole."""
    head = OK + headers + b"Content-Length: %d\r\n\r\n" % len(body)
    return lambda connection: connection.sendall(head + body)


def drips(start: bytes, drop: bytes = b" ") -> Behaviour:
    """Send the start, then a little at a time for a minute."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(start)
        end = time.monotonic() + DRIP_S
        while time.monotonic() < end:
            time.sleep(0.05)
            connection.sendall(drop)

    return behave


def silent(connection: socket.socket) -> None:
    """Never answer."""
    time.sleep(DRIP_S)
