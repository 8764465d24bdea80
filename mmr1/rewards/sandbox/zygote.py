"""The process that workers are forked from: it has imported the verifier and touched nothing else.

It is a fresh interpreter, so neither CUDA nor threads nor locks of the trainer are in it, and a
fork of it is ready in milliseconds. It owns the workers: only their parent can signal a process id
without the risk that another process has got it.
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
from typing import Any

from mmr1.rewards.sandbox.limits import Limits, drop_network
from mmr1.rewards.sandbox.wire import recv_exactly, send_frame
from mmr1.rewards.sandbox.worker import call_target, work

FORK, KILL = b"F", b"K"
ANSWER = struct.Struct("!i")
_ORPHAN_CHECK_S = 1.0


def main(control_fd: int, target: str, args: Sequence[Any], limits: Limits) -> None:
    """Warm up with ``target(*args)``, report, then fork and kill until the pool hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = os.getppid()
    control = socket.socket(fileno=control_fd)
    try:
        greeting = json.dumps([call_target(target, args), None])
    except BaseException as error:
        name = "" if type(error) is ValueError else f"{type(error).__name__}: "
        send_frame(control, json.dumps([None, f"{name}{error}" or "it failed"]).encode())
        raise SystemExit(1) from error
    drop_network()
    gc.freeze()  # its objects stay shared with the workers forked from it
    send_frame(control, greeting.encode())
    while os.getppid() == owner:
        if select.select([control], [], [], _ORPHAN_CHECK_S)[0] and not _serve(control, limits):
            break
    # The workers' PDEATHSIG ends them with this process.


def _serve(control: socket.socket, limits: Limits) -> bool:
    """Answer one request; False when the pool has hung up."""
    message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if message == FORK:
        control.sendall(ANSWER.pack(_fork(control, descriptors[0], limits)))
    elif message == KILL:
        (pid,) = ANSWER.unpack(recv_exactly(control, ANSWER.size))
        control.sendall(ANSWER.pack(_end(pid)))
    return bool(message)


def _fork(control: socket.socket, channel_fd: int, limits: Limits) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            work(socket.socket(fileno=channel_fd), limits, zygote)
        finally:
            os._exit(0)
    os.close(channel_fd)
    return pid


def _end(pid: int) -> int:
    """Kill and reap a worker; its exit code, negative for a signal."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
