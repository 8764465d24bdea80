"""The broker: a process outside the walls that makes the connections of sandboxed workers.

A worker itself cannot connect. A system call filter sees only the pointer to an address, and
Landlock knows ports, not hosts: neither can tell one server from another. So ``connect`` stays
refused, and a worker asks the broker, which reads the address once, compares it with the list of
the configuration, connects, and hands over the connected socket (SCM_RIGHTS).
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from mmr1.lifetime import die_with
from mmr1.rewards.sandbox.wire import LENGTH, recv_exactly

LONGEST_S = 30.0
"""The longest wait for a connection."""
LONGEST_MESSAGE = 1 << 16
LOCALHOST = "localhost"

Host = tuple[str, int | None]
"""A name or an address, and its port; None: all of them."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def start_broker(hosts: Sequence[Host], door_fd: int) -> socket.socket:
    """Fork the broker from this single-threaded process, with which it ends.

    Args:
        hosts: What the workers may reach.
        door_fd: A descriptor that the broker must not keep.

    Returns:
        Its door, for :func:`new_line`.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            die_with(parent)
            ours.close()
            os.close(door_fd)
            _serve(theirs, Reachable(hosts))
        finally:
            os._exit(0)
    theirs.close()
    return ours


def new_line(door: socket.socket) -> socket.socket:
    """A worker's end of a new line to the broker. Raises OSError if the broker is gone."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(door, [b"L"], [theirs.fileno()])
    return ours


class Reachable:
    """What may be reached: the listed hosts at their addresses.

    Args:
        hosts: ``localhost`` and every address of this machine's loopback mean the same.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = [(_canonical(host), port) for host, port in hosts]
        self._found: dict[str, set[_Address]] = {}

    def resolve(self, host: str | None, port: Any, *hints: int) -> list[Any]:
        """``getaddrinfo`` of an address, or of a listed name.

        Names of other hosts are not looked up: a question to a name server is a message to it.

        Raises:
            PermissionError: The name is not listed; or has no address but one of this machine or
                its link, as a name server that others run could answer.
            OSError: The name has no address.
        """
        if host is None or _address(host) is not None:
            return socket.getaddrinfo(host, port, *hints)
        name = _canonical(host)
        if all(name != listed for listed, _ in self._hosts):
            raise _refusal(host, port)
        answers = socket.getaddrinfo(host, port, *hints)
        found = [(address, a) for a in answers if (address := _address(str(a[4][0]))) is not None]
        kept = [(address, answer) for address, answer in found if _may_be(name, address)]
        if not kept:
            told = ", ".join(sorted({str(address) for address, _ in found}))
            raise PermissionError(
                errno.EPERM,
                f"{host} is {told}, an address of this machine or its link; list the address "
                "itself in environment.sandbox.network",
            )
        self._found.setdefault(name, set()).update(address for address, _ in kept)
        return [answer for _, answer in kept]

    def connect(self, family: int, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connected socket.

        Raises:
            PermissionError: The host is not listed, or not with this port.
            OSError: It cannot be reached.
        """
        place = self.resolve(host, port, family, socket.SOCK_STREAM)[0][4]
        if not self._allows(place[0], place[1]):
            raise _refusal(host, port)
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(min(timeout_s, LONGEST_S))
            made.connect(place)
        except BaseException:
            made.close()
            raise
        return made

    def _allows(self, place: str, port: int) -> bool:
        address = _address(place)
        return any(
            only in (None, port) and self._is_at(host, address) for host, only in self._hosts
        )

    def _is_at(self, host: str, address: _Address | None) -> bool:
        if address is None:
            return False
        if host == LOCALHOST:
            return address.is_loopback
        listed = _address(host)
        return address in self._found.get(host, ()) if listed is None else address == listed


def _refusal(host: str | None, port: Any) -> PermissionError:
    return PermissionError(
        errno.EPERM, f"the sandbox reaches no {host}:{port}; list it in environment.sandbox.network"
    )


def _may_be(name: str, address: _Address) -> bool:
    if name == LOCALHOST:
        return address.is_loopback
    return not (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )


def _canonical(host: str) -> str:
    address = _address(host)
    if address is None:
        return host.lower().rstrip(".")
    return LOCALHOST if address.is_loopback else str(address)


def _address(host: str) -> _Address | None:
    """An address; None for a name. ``::ffff:127.0.0.1`` is 127.0.0.1."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _serve(door: socket.socket, reachable: Reachable) -> None:
    """Serve each line that comes through the door, in a thread, until the door is closed."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(door, 1, 1)
        if not message:
            return
        line = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_serve_worker, args=(line, reachable), daemon=True).start()


def _serve_worker(line: socket.socket, reachable: Reachable) -> None:
    """Answer a worker, which may send anything, until it ends or sends what is not a request."""
    with line:
        while True:
            try:
                (length,) = LENGTH.unpack(recv_exactly(line, LENGTH.size))
                if length > LONGEST_MESSAGE:
                    return
                name, *arguments = json.loads(recv_exactly(line, length))
                _answer(line, reachable, name, arguments)
            except (EOFError, OSError, ValueError, TypeError, RecursionError):
                return


def _answer(line: socket.socket, reachable: Reachable, name: str, arguments: list[Any]) -> None:
    try:
        if name == "connect":
            with reachable.connect(*arguments) as made:
                _send(line, [None, None], made)
            return
        _send(line, [None, reachable.resolve(*arguments)])
    except socket.gaierror as error:
        _send(line, [["gaierror", error.errno, error.strerror], None])
    except OSError as error:
        code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
        _send(line, [["OSError", code, error.strerror or str(error)], None])
    except (TypeError, ValueError, OverflowError) as error:  # no host, port or number
        _send(line, [["OSError", errno.EINVAL, str(error)], None])


def _send(line: socket.socket, answer: Any, made: socket.socket | None = None) -> None:
    body = json.dumps(answer).encode()
    descriptors = [] if made is None else [made.fileno()]
    socket.send_fds(line, [LENGTH.pack(len(body))], descriptors)
    line.sendall(body)
