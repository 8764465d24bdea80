"""The process that workers are forked from: it has imported our own code and touched nothing else.

It is a fresh interpreter, so neither CUDA nor threads nor locks of the trainer are in it, and a
fork of it is ready in milliseconds. Pools that warm up alike share one. It owns the workers: only
their parent can signal a process id without the risk that another process has got it. A user's
plugin is never imported here: this process stands outside most of the walls.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mmr1.rewards.sandbox.walls import Limits, Missing, drop_network
from mmr1.rewards.sandbox.wire import recv_exactly, recv_frame, send_frame
from mmr1.rewards.sandbox.worker import call_target, error_line, work

FORK, KILL = b"F", b"K"
ANSWER = struct.Struct("!i")
_ORPHAN_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """A pool's settings for its workers, as JSON.

    Attributes:
        limits: Limits of each worker.
        readable: Files and folders that the workers may read besides Python's own.
        allow_weak: Let workers run without a required wall.
        lambdify: Leave sympy's ``lambdify`` as it is.
        walls: Raise them.
    """

    limits: Limits
    readable: Sequence[str]
    allow_weak: bool
    lambdify: bool
    walls: bool


@dataclass(frozen=True, slots=True)
class _PoolConnection:
    """A pool, seen from the zygote: its line and its workers."""

    line: socket.socket
    settings: Settings
    workers: set[int] = field(default_factory=set)


def main(door_fd: int, target: str, args: Sequence[Any], *, walls: bool) -> None:
    """Warm up, report, then fork and kill until the owner hangs up.

    Args:
        door_fd: A socket. Each descriptor that comes through it is the line of another pool.
        target: ``"module:function"`` of ours to warm up with.
        args: Its arguments.
        walls: The workers have them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    owner = os.getppid()
    door = socket.socket(fileno=door_fd)
    missing = (
        drop_network() if walls else {}
    )  # before an import starts a thread, which would forbid it
    try:
        call_target(target, args)
    except BaseException as error:
        send_frame(door, json.dumps(error_line(error)).encode())
        raise SystemExit(1) from error
    gc.freeze()  # its objects stay shared with the workers forked from it
    send_frame(door, json.dumps(None).encode())
    customers: dict[int, _PoolConnection] = {}
    poll = select.poll()  # select has room for 1024 descriptors
    poll.register(door_fd, select.POLLIN)
    while os.getppid() == owner:
        ready = {descriptor for descriptor, _ in poll.poll(_ORPHAN_CHECK_S * 1000)}
        for line in customers.keys() & ready:
            if not _serve(customers[line], missing):
                poll.unregister(line)
                _show_out(customers.pop(line))
        if door_fd in ready:
            if (customer := _accept_pool(door)) is None:
                break
            customers[customer.line.fileno()] = customer
            poll.register(customer.line, select.POLLIN)
    # The workers' PDEATHSIG ends them with this process.


def _accept_pool(door: socket.socket) -> _PoolConnection | None:
    """Admit a new pool, whose settings are already on its line; None when the owner has hung up."""
    message, descriptors, _, _ = socket.recv_fds(door, 1, 1)
    if not message:
        return None
    line = socket.socket(fileno=descriptors[0])
    settings = json.loads(recv_frame(line))
    settings["limits"] = Limits(**settings["limits"])
    return _PoolConnection(line, Settings(**settings))


def _serve(customer: _PoolConnection, missing: Missing) -> bool:
    """Answer one request; False when the pool has hung up."""
    try:
        message, descriptors, _, _ = socket.recv_fds(customer.line, 1, 1)
        if message == FORK:
            answer = _fork(descriptors[0], customer, missing)
        elif message == KILL:
            answer = _end(recv_number(customer.line), customer)
        else:
            return False
        customer.line.sendall(ANSWER.pack(answer))
    except (OSError, EOFError):
        return False
    return True


def recv_number(line: socket.socket) -> int:
    (number,) = ANSWER.unpack(recv_exactly(line, ANSWER.size))
    return int(number)


def _fork(channel_fd: int, customer: _PoolConnection, missing: Missing) -> int:
    """Fork a worker; returns its process id, or a negative system error."""
    zygote, settings = os.getpid(), customer.settings
    try:
        pid = os.fork()
    except OSError as error:
        os.close(channel_fd)
        return -(error.errno or errno.EAGAIN)
    if pid == 0:
        try:
            work(
                socket.socket(fileno=channel_fd),
                settings.limits,
                settings.readable,
                missing,
                zygote,
                allow_weak=settings.allow_weak,
                lambdify=settings.lambdify,
                walls=settings.walls,
            )
        finally:
            os._exit(0)
    os.close(channel_fd)
    customer.workers.add(pid)
    return pid


def _end(pid: int, customer: _PoolConnection) -> int:
    """Kill and reap a worker; returns its exit code, negative for a signal."""
    customer.workers.remove(pid)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _show_out(customer: _PoolConnection) -> None:
    customer.line.close()
    for pid in tuple(customer.workers):
        _end(pid, customer)
