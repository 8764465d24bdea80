"""Length-prefixed frames between the pool and its processes.

Jobs travel as pickles, from the trusted side to the workers. Results come back as JSON only: a
worker may have been taken over by an answer, and unpickling its bytes would let it out.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from typing import Any

from mmr1.types import Reward, Status

MAX_RESULT = 64 << 20
LENGTH = struct.Struct("!I")


def send_frame(channel: socket.socket, body: bytes) -> None:
    channel.sendall(LENGTH.pack(len(body)) + body)


def recv_exactly(channel: socket.socket, size: int) -> bytes:
    """Blocking read of ``size`` bytes. Raises EOFError when the other side is gone."""
    chunks = []
    while size:
        chunk = channel.recv(min(size, 1 << 20))
        if not chunk:
            raise EOFError("the other side closed the channel")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def recv_frame(channel: socket.socket) -> bytes:
    return recv_exactly(channel, LENGTH.unpack(recv_exactly(channel, LENGTH.size))[0])


class FrameBuffer:
    """Collects a frame from pieces, so that the parent never waits on a worker's word."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, chunk: bytes) -> bytes | None:
        """The frame's body once it is whole. Raises ValueError when it claims to be too long."""
        self._data += chunk
        if len(self._data) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._data)
        if length > MAX_RESULT:
            raise ValueError(f"a result of {length} bytes")
        if len(self._data) < LENGTH.size + length:
            return None
        return bytes(self._data[LENGTH.size :])


def pack_job(target: str, args: tuple[Any, ...]) -> bytes:
    return pickle.dumps((target, args), protocol=pickle.HIGHEST_PROTOCOL)


def pack_rewards(rewards: list[Reward]) -> bytes:
    return json.dumps(
        [(r.value, r.status.value, r.error, dict(r.components)) for r in rewards]
    ).encode()


def unpack_rewards(body: bytes) -> list[Reward]:
    """The results of a worker, every field checked. Raises ValueError on anything else."""
    try:
        rows = json.loads(body)
        return [_reward(*row) for row in rows]
    except (TypeError, AssertionError, RecursionError) as error:
        raise ValueError(f"a result that is none: {error}") from error


def _reward(value: Any, status: str, error: Any, components: Any) -> Reward:
    number = None if value is None else float(value)
    checked = {str(n): None if v is None else float(v) for n, v in components.items()}
    return Reward(number, Status(status), checked, None if error is None else str(error)[:500])
