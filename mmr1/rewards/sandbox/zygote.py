"""The process that workers are forked from: it has imported our own code and touched nothing else.

It is a fresh interpreter, so neither CUDA nor threads nor locks of the trainer are in it, and a
fork of it is ready in milliseconds. It owns the workers: only their parent can signal a process id
without the risk that another process has got it. A user's plugin is never imported here: this
process stands outside most of the walls.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.rewards.sandbox.limits import Limits
from mmr1.rewards.sandbox.walls import Missing, drop_network
from mmr1.rewards.sandbox.wire import recv_exactly, send_frame
from mmr1.rewards.sandbox.worker import call_target, error_line, work

FORK, KILL = b"F", b"K"
ANSWER = struct.Struct("!i")
_ORPHAN_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the pool tells its zygote, as JSON on the command line.

    Attributes:
        target: ``"module:function"`` of ours to warm up with.
        args: Its arguments.
        limits: Of each worker.
        readable: Files and folders that the workers may read besides Python's own.
        allow_weak: Let workers run without a required wall.
        lambdify: Leave sympy's ``lambdify`` as it is.
    """

    target: str
    args: Sequence[Any]
    limits: Limits
    readable: Sequence[str]
    allow_weak: bool
    lambdify: bool


def main(control_fd: int, settings: Settings) -> None:
    """Warm up, report, then fork and kill until the pool hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = os.getppid()
    control = socket.socket(fileno=control_fd)
    missing = drop_network()  # before an import starts a thread, which would forbid it
    try:
        call_target(settings.target, settings.args)
    except BaseException as error:
        send_frame(control, json.dumps(error_line(error)).encode())
        raise SystemExit(1) from error
    gc.freeze()  # its objects stay shared with the workers forked from it
    send_frame(control, json.dumps(None).encode())
    while os.getppid() == owner:
        if select.select([control], [], [], _ORPHAN_CHECK_S)[0] and not _serve(
            control, settings, missing
        ):
            break
    # The workers' PDEATHSIG ends them with this process.


def _serve(control: socket.socket, settings: Settings, missing: Missing) -> bool:
    """Answer one request; False when the pool has hung up."""
    message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if message == FORK:
        control.sendall(ANSWER.pack(_fork(descriptors[0], settings, missing)))
    elif message == KILL:
        (pid,) = ANSWER.unpack(recv_exactly(control, ANSWER.size))
        control.sendall(ANSWER.pack(_end(pid)))
    return bool(message)


def _fork(channel_fd: int, settings: Settings, missing: Missing) -> int:
    zygote = os.getpid()
    pid = os.fork()
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
            )
        finally:
            os._exit(0)
    os.close(channel_fd)
    return pid


def _end(pid: int) -> int:
    """Kill and reap a worker; its exit code, negative for a signal."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
