"""Length-prefixed frames between the pool and its processes.

Jobs travel as pickles, from the trusted side to the workers. Results come back as JSON only: a
worker may have been taken over by an answer, and unpickling its bytes would let it out. Each job
has a number that its answer repeats, and each answer is checked before it is believed.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from mmr1.types import Reward, Status

MAX_RESULT = 64 << 20
LENGTH = struct.Struct("!I")
REWARDS, VALUE = "rewards", "value"


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


@dataclass(slots=True)
class FrameBuffer:
    """Collects a frame from pieces, so that the parent never waits on a worker's word.

    Attributes:
        max_result: Bytes of the longest frame.
    """

    max_result: int = MAX_RESULT
    _data: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> bytes | None:
        """The frame's body once it is whole.

        Raises:
            ValueError: If the frame claims to be too long, or something follows it: one job, one
                answer.
        """
        self._data += chunk
        if len(self._data) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._data)
        if length > self.max_result:
            raise ValueError(f"a result of {length} bytes")
        if len(self._data) < LENGTH.size + length:
            return None
        if len(self._data) > LENGTH.size + length:
            raise ValueError("more than one answer")
        return bytes(self._data[LENGTH.size :])


def pack_answer(number: int, answer: Any) -> bytes:
    return json.dumps([number, answer]).encode()


def unpack_answer(body: bytes, number: int) -> Any:
    """The answer to the job of this number. Raises ValueError on anything else."""
    try:
        message = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("a result that is nested too deep") from error
    if not isinstance(message, list) or len(message) != 2:
        raise ValueError("an invalid result")
    if type(message[0]) is not int or message[0] != number:
        raise ValueError("an answer to another job")
    if message[1] is None:
        raise ValueError("an empty answer")
    return message[1]


def reward_rows(rewards: list[Reward]) -> list[Any]:
    return [(r.value, r.status.value, r.error, dict(r.components)) for r in rewards]


def read_rewards(rows: Any, expected: int) -> list[Reward]:
    """A worker's rewards, every field checked: ``expected`` of them, or one that says what failed.

    Raises:
        ValueError: If the rows are anything else.
    """
    if not isinstance(rows, list):
        raise ValueError("a result that is not a list")
    rewards = list(map(_reward, rows))
    if len(rewards) != expected and not (len(rewards) == 1 and not rewards[0].valid):
        raise ValueError(f"{len(rewards)} rewards for {expected}")
    return rewards


def _reward(row: Any) -> Reward:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[3], dict):
        raise ValueError("a row that is not a reward")
    value, status, error, components = row
    if error is not None and not isinstance(error, str):
        raise ValueError("an error that is not text")
    number, checked = _number(value), Status(status)
    if (number is not None) != checked.valid:
        raise ValueError(f"a reward of {number} with the status {checked}")
    parts = {name: _number(part) for name, part in components.items()}
    return Reward(number, checked, parts, None if error is None else error[:500])


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float):
        raise ValueError("a value that is not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("a number that is too large") from error
    if not math.isfinite(number):  # 1e999 is JSON
        raise ValueError("a number that is not finite")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name}, which is not a number")


def describe(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
