"""The zygote and its workers as the pool holds them: started, forked, killed, ended.

Apart from the pool, so that a finalizer can end them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from mmr1.deadline import Stopwatch
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.walls import Missing, refusal
from mmr1.rewards.sandbox.wire import (
    MAX_RESULT,
    FrameBuffer,
    new_number,
    pack_job,
    recv_exactly,
    recv_frame,
    send_frame,
)
from mmr1.rewards.sandbox.zygote import ANSWER, FORK, KILL, Settings

_SEND_S = 10.0
_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mmr1.rewards.sandbox import limits, zygote; s = a['settings']; "
    "s['limits'] = limits.Limits(**s['limits']); zygote.main(a['fd'], zygote.Settings(**s))"
)


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
    """One zygote and its workers."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.zygote: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.missing: Missing = {}
        self._allow_weak = False

    def start(self, settings: Settings, environment: Mapping[str, str], patience_s: float) -> None:
        """Start the zygote, in place of the one before.

        Raises:
            ValueError: Its warm-up fails or takes too long.
        """
        self._end_zygote()
        self._allow_weak = settings.allow_weak
        ours, theirs = socket.socketpair()
        boot = {
            "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100 - "" is the cwd
            "fd": theirs.fileno(),
            "settings": asdict(settings),
        }
        with theirs:
            self.zygote = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(boot)],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.control = ours
        ours.settimeout(patience_s)
        try:
            problem = json.loads(recv_frame(ours))
        except TimeoutError:
            problem = f"the verifier gives no sign of life in {patience_s:g} s"
        except (EOFError, OSError):
            problem = f"the verifier ended while starting ({describe(self.zygote.wait())})"
        if problem:
            self._end_zygote()
            raise ValueError(problem)

    def fork(self) -> Worker:
        """A new worker, its walls up.

        Raises:
            ValueError: A wall that is required is missing, or it ends before its walls are up.
            OSError, EOFError: The zygote is gone.
        """
        assert self.control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [FORK], [theirs.fileno()])
            (pid,) = ANSWER.unpack(recv_exactly(self.control, ANSWER.size))
        worker = Worker(pid, ours)
        ours.settimeout(self.control.gettimeout())
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
        if worker.pid == 0 or self.control is None:
            return None
        pid, worker.pid = worker.pid, 0
        try:
            self.control.sendall(KILL + ANSWER.pack(pid))
            (code,) = ANSWER.unpack(recv_exactly(self.control, ANSWER.size))
        except (OSError, EOFError):
            return None
        return int(code)

    def end(self) -> None:
        for worker in self.workers:
            self.kill(worker)
        self.workers = []
        self._end_zygote()

    def _end_zygote(self) -> None:
        """Hang up on the zygote; its death is its workers' death."""
        for worker in self.workers:
            worker.pid = 0
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.zygote is not None:
            try:
                self.zygote.wait(2)
            except subprocess.TimeoutExpired:
                self.zygote.kill()
                self.zygote.wait()
            self.zygote = None


def describe(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
