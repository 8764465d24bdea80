"""The pool's worker processes: forked from a zygote, killed, ended.

Apart from the pool, so that a finalizer can end them. Pools that warm up alike have their workers
from the same zygote: warming up takes a second of CPU time, and a fork milliseconds.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mmr1.lifetime import Watch
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.walls import Missing, refusal
from mmr1.rewards.sandbox.wire import (
    MAX_RESULT,
    FrameBuffer,
    describe,
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
        channel: Channel to the worker, not blocking.
        prepared: Its preparation is done (or there is none).
        index: Index of the job in flight; None while it prepares or is idle.
        number: Number that the answer in flight must repeat; None when it is idle.
        watch: The time that what is in flight has taken.
        buffer: Part of the answer that has come.
    """

    pid: int
    channel: socket.socket
    prepared: bool = True
    index: int | None = None
    number: int | None = None
    watch: Watch | None = None
    buffer: FrameBuffer = field(default_factory=FrameBuffer)

    def send(self, kind: str, job: Job, max_result: int = MAX_RESULT) -> None:
        """Send it a job: ``REWARDS``, or ``VALUE`` for any JSON value, of so many bytes at most.

        A worker that died shows as the end of its channel.
        """
        self.buffer = FrameBuffer(max_result)
        self.number = secrets.randbits(48)  # so that no job can answer ahead for the next one
        sent = (self.number, kind, job.target, job.args)
        body = pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL)
        self.channel.settimeout(_SEND_S)
        with suppress(OSError):
            send_frame(self.channel, body)
        self.channel.setblocking(False)

    def rest(self) -> None:
        """Note that its answer has come."""
        self.index = self.number = self.watch = None

    @property
    def disturbed(self) -> bool:
        """True if it hung up, or sent something, while nothing was asked of it."""
        if self.channel.fileno() < 0:  # killed
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
        """Start a zygote in place of the one before, whose workers ended with it.

        Raises:
            ValueError: If the warm-up fails or takes too long.
            OSError: If the warm-up fails or takes too long.
        """
        self._leave()
        self._zygote = shared_zygote(warm, environment, patience_s, settings)
        self._line = self._zygote.connect(settings)
        self._line.settimeout(patience_s)
        self._allow_weak = settings.allow_weak

    def fork(self) -> Worker:
        """A new worker, its walls up.

        Raises:
            ZygoteGoneError: If the zygote is gone.
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


_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mmr1.rewards.sandbox import zygote; "
    "zygote.main(int(sys.argv[2]), a['target'], a['args'], walls=a['walls'])"
)
_END_S = 2.0


class ZygoteGoneError(Exception):
    """The zygote has ended; another one has to be started."""

    def __init__(self) -> None:
        super().__init__("the process that they are forked from has ended")


class Zygote:
    """A warmed-up process. It ends when nobody holds this object any more.

    Args:
        command: Command that starts it; the descriptor of its door is added.
        environment: Its environment.
        patience_s: Longest wait for the warm-up.
        walls: Whether there are walls: what the workers print then goes nowhere, and else where
            this process prints.

    Raises:
        ValueError: The warm-up fails or takes too long.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], patience_s: float, *, walls: bool
    ) -> None:
        self._door, theirs = socket.socketpair()
        output = subprocess.DEVNULL if walls else None
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._forgotten = False
        self._end = weakref.finalize(self, _end, self._door, self._process)
        self._door.settimeout(patience_s)
        try:
            problem = json.loads(recv_frame(self._door))
        except TimeoutError:
            problem = f"the verifier gives no sign of life in {patience_s:g} s"
        except (EOFError, OSError):
            problem = f"the verifier ended while starting ({describe(self._process.wait())})"
        if problem:
            self._end()
            raise ValueError(problem)

    def connect(self, settings: Settings) -> socket.socket:
        """The line of another pool. When it is closed, the workers forked over it end.

        Raises:
            OSError: If no file descriptor is left, or the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            send_frame(ours, json.dumps(asdict(settings)).encode())
            try:
                socket.send_fds(self._door, [b"P"], [theirs.fileno()])
            except OSError:
                self.forget()
                ours.close()
                raise
        return ours

    def forget(self) -> None:
        """Keep it from other pools, as it did not answer."""
        self._forgotten = True

    @property
    def usable(self) -> bool:
        return not self._forgotten and self._process.poll() is None


def _end(door: socket.socket, process: subprocess.Popen[bytes]) -> None:
    door.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_lock = threading.Lock()
_zygotes: weakref.WeakValueDictionary[str, Zygote] = weakref.WeakValueDictionary()
_keepers: list[set[Zygote]] = []


def shared_zygote(
    warm: Job, environment: Mapping[str, str], patience_s: float, settings: Settings
) -> Zygote:
    """The zygote of this folder with this warm-up, environment and walls; started if there is none.

    Raises:
        ValueError: If the warm-up fails or takes too long.
    """
    boot = {
        "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100 - "" is the cwd
        "target": warm.target,
        "args": warm.args,
        "walls": settings.walls,
    }
    command = [sys.executable, "-c", _BOOT, json.dumps(boot)]
    folder = Path().stat()  # relative paths of plugins are looked up in it
    key = json.dumps([command, sorted(environment.items()), folder.st_dev, folder.st_ino])
    with _lock:
        zygote = _zygotes.get(key)
        if zygote is None or not zygote.usable:
            zygote = _zygotes[key] = Zygote(command, environment, patience_s, walls=settings.walls)
        for kept in _keepers:
            kept.add(zygote)
    return zygote


@contextmanager
def kept_zygotes() -> Iterator[None]:
    """Keep the zygotes of the block, in any thread, until its end, for later pools."""
    kept: set[Zygote] = set()
    _keepers.append(kept)
    try:
        yield
    finally:
        _keepers[:] = [other for other in _keepers if other is not kept]
