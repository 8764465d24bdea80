"""The workers as the pool holds them: forked, killed, ended.

Apart from the pool, so that a finalizer can end them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from mmr1.deadline import Stopwatch
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.shared_zygotes import Zygote, ZygoteGoneError, shared_zygote
from mmr1.rewards.sandbox.walls import Missing, refusal
from mmr1.rewards.sandbox.wire import (
    MAX_RESULT,
    FrameBuffer,
    describe,
    new_number,
    pack_job,
    recv_frame,
    send_frame,
)
from mmr1.rewards.sandbox.zygote import ANSWER, FORK, KILL, Settings, recv_number

_SEND_S = 10.0


@dataclass(slots=True)
class Worker:
    """One worker process, seen from the pool.

    Attributes:
        pid: Its process id; 0 once it has been killed.
        channel: To it, not blocking.
        prepared: Its preparation is done (or there is none).
        index: Of the job in flight; None while it prepares or is idle.
        number: What the answer in flight must repeat; None when it is idle.
        watch: The time that what is in flight has taken.
        buffer: What of the answer has come.
    """

    pid: int
    channel: socket.socket
    prepared: bool = True
    index: int | None = None
    number: int | None = None
    watch: Stopwatch | None = None
    buffer: FrameBuffer = field(default_factory=FrameBuffer)

    def send(self, kind: str, job: Job, max_result: int = MAX_RESULT) -> None:
        """Hand it a job, whose answer has so many bytes at most.

        A worker that died shows as the end of its channel.
        """
        self.number, self.buffer = new_number(), FrameBuffer(max_result)
        self.channel.settimeout(_SEND_S)
        with suppress(OSError):
            send_frame(self.channel, pack_job(self.number, kind, job.target, job.args))
        self.channel.setblocking(False)

    def rest(self) -> None:
        """Its answer has come."""
        self.index = self.number = self.watch = None

    @property
    def killed(self) -> bool:
        return self.channel.fileno() < 0

    @property
    def disturbed(self) -> bool:
        """Whether it hung up, or sent something, while nothing was asked of it."""
        if self.killed:
            return True
        try:
            return self.channel.recv(1, socket.MSG_PEEK) is not None
        except BlockingIOError:
            return False
        except OSError:
            return True


class Processes:
    """The workers of one pool, and its line to the zygote that they are forked from."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.missing: Missing = {}
        self._zygote: Zygote | None = None
        self._line: socket.socket | None = None
        self._allow_weak = False

    def start(
        self, warm: Job, settings: Settings, environment: Mapping[str, str], patience_s: float
    ) -> None:
        """Have a zygote, in place of the one before, with which the workers ended.

        Raises:
            ValueError: Its warm-up fails or takes too long.
            OSError: There is no descriptor left.
        """
        self._leave()
        self._zygote = shared_zygote(warm, environment, patience_s, walls=settings.walls)
        self._line = self._zygote.connect(settings)
        self._line.settimeout(patience_s)
        self._allow_weak = settings.allow_weak

    def fork(self) -> Worker:
        """A new worker, its walls up.

        Raises:
            ZygoteGoneError: There is no zygote.
            ValueError: A wall that is required is missing, or it ends before its walls are up.
            OSError: The system has no descriptor or no process left.
        """
        if self._line is None:
            raise ZygoteGoneError
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._request(lambda line: socket.send_fds(line, [FORK], [theirs.fileno()]))
        if pid < 0:
            ours.close()
            raise OSError(-pid, os.strerror(-pid))
        worker = Worker(pid, ours)
        ours.settimeout(self._line.gettimeout())
        try:
            self.missing = json.loads(recv_frame(ours))
        except (EOFError, OSError) as error:
            code = self.kill(worker)
            raise ValueError(f"a worker ended while starting ({describe(code)})") from error
        problem = refusal(self.missing)
        if problem and not self._allow_weak:
            self.kill(worker)
            raise ValueError(problem)
        ours.setblocking(False)
        return worker

    def kill(self, worker: Worker) -> int | None:
        """SIGKILL and reap; the exit code, or None if it is already known to be gone."""
        worker.channel.close()
        if worker.pid == 0 or self._line is None:
            return None
        pid, worker.pid = worker.pid, 0
        try:
            return self._request(lambda line: line.sendall(KILL + ANSWER.pack(pid)))
        except ZygoteGoneError:
            return None

    def end(self) -> None:
        for worker in self.workers:
            self.kill(worker)
        self._leave()
        self.workers = []

    def _request(self, send: Callable[[socket.socket], object]) -> int:
        assert self._line is not None
        try:
            send(self._line)
            return recv_number(self._line)
        except (OSError, EOFError) as error:  # somebody killed it
            if self._zygote is not None:
                self._zygote.forget()
            self._leave()  # an answer that comes late would be taken for the next request's
            raise ZygoteGoneError from error

    def _leave(self) -> None:
        """Hang up; the zygote ends the workers, and itself after the last pool."""
        for worker in self.workers:
            worker.pid = 0
        if self._line is not None:
            self._line.close()
        self._line = self._zygote = None
