"""The parent's side: hands jobs to workers, holds every deadline, kills and replaces.

No signals, no event loop and no thread of its own: ``run`` works in the thread that calls it, so
the main thread, another thread, an asyncio loop and a Ray actor all see the same thing.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mmr1.rewards.item import Job, invalid
from mmr1.rewards.sandbox.limits import Limits
from mmr1.rewards.sandbox.wire import (
    FrameBuffer,
    pack_job,
    recv_exactly,
    recv_frame,
    send_frame,
    unpack_rewards,
)
from mmr1.rewards.sandbox.zygote import ANSWER, FORK, KILL
from mmr1.types import Reward, Status

VERIFIER = Job("mmr1.rewards.math.symbolic:warm", ())
_START_S = 120.0
_SEND_S = 10.0
_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mmr1.rewards.sandbox import limits, zygote; "
    "zygote.main(a['fd'], a['target'], a['args'], limits.Limits(**a['limits']))"
)
# Pure-Python integers can be interrupted by a kill like anything else, but gmpy2 aborts the whole
# process when it runs out of memory; and one BLAS thread is enough.
_ENVIRONMENT = {
    "SYMPY_GROUND_TYPES": "python",
    "MPMATH_NOGMPY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")


@dataclass(slots=True)
class _Worker:
    pid: int
    channel: socket.socket
    job: Job | None = None
    deadline: float = 0.0
    buffer: FrameBuffer = field(default_factory=FrameBuffer)


class Pool:
    """Persistent worker processes with one job in flight each, started when first needed.

    Args:
        workers: How many processes.
        timeout_s: Deadline of one job, in seconds, held by this side.
        warm: A job (JSON arguments) that the zygote runs first: what it imports and caches, the
            workers find done. Its answer is what ``start`` returns.
        limits: What a worker may use.
        environment: Environment of the workers; a short safe list by default, without tokens.
        cache_size: Results of cached jobs to remember, time-outs included.
        start_s: Longest wait for the warm-up.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 2.0,
        *,
        warm: Job = VERIFIER,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        cache_size: int = 100_000,
        start_s: float = _START_S,
    ) -> None:
        self.timeout_s = timeout_s
        self._warm, self._limits = warm, limits or Limits()
        if environment is None:
            environment = {k: v for k in _INHERITED if (v := os.environ.get(k))}
        self._environment = {**environment, **_ENVIRONMENT}
        self._start_s = start_s
        self._cache: OrderedDict[Job, list[Reward]] = OrderedDict()
        self._cache_size = cache_size
        self._lock = threading.RLock()
        self._size = workers
        self._greeting: Any = None
        self._state = _Processes()
        self._finalizer = weakref.finalize(self, _Processes.end, self._state)

    def start(self) -> Any:
        """Start the processes unless they are there, and return what the warm-up returned.

        Raises:
            ValueError: The warm-up fails, or takes the process down.
        """
        with self._lock:
            assert self._finalizer.alive, "the pool is closed"
            if not self._state.workers:
                self._start_zygote()
                self._state.workers = [self._state.fork() for _ in range(self._size)]
            return self._greeting

    def run(self, jobs: Sequence[Job]) -> list[list[Reward]]:
        """The rewards of each job, in order. Equal cached jobs run once. Never raises for a job."""
        with self._lock:
            results: dict[Job, list[Reward]] = {}
            distinct: list[Job] = []
            uncached: list[tuple[int, Job]] = []
            for index, job in enumerate(jobs):
                if not job.cached:
                    uncached.append((index, job))
                elif job in self._cache:
                    self._cache.move_to_end(job)
                    results[job] = self._cache[job]
                elif job not in results:
                    results[job] = []
                    distinct.append(job)
            done = self._run([*distinct, *(job for _, job in uncached)])
            for job, rewards in zip(distinct, done, strict=False):
                results[job] = rewards
                self._remember(job, rewards)
            by_index = {i: r for (i, _), r in zip(uncached, done[len(distinct) :], strict=True)}
            return [by_index[i] if i in by_index else results[job] for i, job in enumerate(jobs)]

    def close(self) -> None:
        """End the workers; safe to call twice."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._state.workers]

    def _remember(self, job: Job, rewards: list[Reward]) -> None:
        self._cache[job] = rewards
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)

    def _run(self, jobs: Sequence[Job]) -> list[list[Reward]]:
        results: list[list[Reward]] = [[] for _ in jobs]
        waiting = deque(range(len(jobs)))
        busy: dict[int, _Worker] = {}  # by the index of the job in flight
        if jobs:
            self.start()
        idle = [self._replace(worker) for worker in self._state.workers]
        with selectors.DefaultSelector() as selector:
            while waiting or busy:
                while waiting and idle:
                    index, worker = waiting.popleft(), idle.pop()
                    self._send(worker, jobs[index])
                    busy[index] = worker
                    selector.register(worker.channel, selectors.EVENT_READ, index)
                patience = min(worker.deadline for worker in busy.values()) - time.monotonic()
                ready = {key.data for key, _ in selector.select(max(0.0, patience))}
                now = time.monotonic()
                for index, worker in list(busy.items()):
                    outcome = self._receive(worker) if index in ready else None
                    if outcome is None and now >= worker.deadline:
                        outcome = [invalid(Status.TIMEOUT, f"no verdict in {self.timeout_s:g} s")]
                    if outcome is None:
                        continue
                    results[index] = outcome
                    del busy[index]
                    selector.unregister(worker.channel)
                    idle.append(self._replace(worker))
        return results

    def _send(self, worker: _Worker, job: Job) -> None:
        worker.job, worker.buffer = job, FrameBuffer()
        worker.deadline = time.monotonic() + self.timeout_s
        worker.channel.settimeout(max(self.timeout_s, _SEND_S))
        with suppress(OSError):  # a dead worker shows as the end of its channel
            send_frame(worker.channel, pack_job(job.target, job.args))
        worker.channel.setblocking(False)

    def _receive(self, worker: _Worker) -> list[Reward] | None:
        """A finished job's rewards, or None while the result is on its way."""
        try:
            chunk = worker.channel.recv(1 << 20)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        if not chunk:
            code = self._state.kill(worker)
            return [invalid(Status.KILLED, f"the verifier process ended ({_describe(code)})")]
        try:
            body = worker.buffer.feed(chunk)
            if body is None:
                return None
            rewards = unpack_rewards(body)
        except ValueError as error:
            return [invalid(Status.ERROR, f"the verifier process sent {error}")]
        worker.job = None
        return rewards

    def _replace(self, worker: _Worker) -> _Worker:
        """The worker itself when it is idle, else a fresh one in its place."""
        if worker.job is None and not _closed(worker.channel):
            return worker
        place = self._state.workers.index(worker)
        self._state.kill(worker)
        try:
            fresh = self._state.fork()
        except (OSError, EOFError):  # somebody killed the zygote
            self._start_zygote()
            fresh = self._state.fork()
        self._state.workers[place] = fresh
        return fresh

    def _start_zygote(self) -> None:
        self._greeting = self._state.start(
            self._warm, self._limits, self._environment, self._start_s
        )


class _Processes:
    """The zygote and its workers, apart from the pool so that a finalizer can end them."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.zygote: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None

    def start(
        self,
        warm: Job,
        limits: Limits,
        environment: Mapping[str, str],
        patience: float,
    ) -> Any:
        self._end_zygote()
        ours, theirs = socket.socketpair()
        settings = {
            "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100 - "" is the cwd
            "fd": theirs.fileno(),
            "target": warm.target,
            "args": warm.args,
            "limits": {"memory": limits.memory, "open_files": limits.open_files},
        }
        with theirs:
            self.zygote = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(settings)],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.control = ours
        ours.settimeout(patience)
        try:
            hello = json.loads(recv_frame(ours))
        except TimeoutError:
            hello = None, f"the verifier gives no sign of life in {patience:g} s"
        except (EOFError, OSError):
            hello = None, f"the verifier ended while starting ({_describe(self.zygote.wait())})"
        greeting, problem = hello
        if problem:
            self.end()
            raise ValueError(problem)
        return greeting

    def fork(self) -> _Worker:
        assert self.control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [FORK], [theirs.fileno()])
            (pid,) = ANSWER.unpack(recv_exactly(self.control, ANSWER.size))
        ours.setblocking(False)
        return _Worker(pid, ours)

    def kill(self, worker: _Worker) -> int | None:
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


def _closed(channel: socket.socket) -> bool:
    """Whether the other side hung up while nothing was asked of it."""
    if channel.fileno() < 0:
        return True
    try:
        return channel.recv(1, socket.MSG_PEEK) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True


def _describe(code: int | None) -> str:
    if code is None:
        return "killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
