"""The parent's side: hands jobs to workers, holds every deadline, kills and replaces.

No signals, no event loop and no thread of its own: ``run`` works in the thread that calls it, so
the main thread, another thread, an asyncio loop and a Ray actor all see the same thing.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mmr1.lifetime import Deadline, Stopwatch, Watch, rule_deadline
from mmr1.logs import report_fault
from mmr1.rewards.item import Job, invalid
from mmr1.rewards.sandbox.processes import Processes, Worker, ZygoteGoneError
from mmr1.rewards.sandbox.walls import (
    Limits,
    Missing,
    missing_walls,
    warn_of_missing_walls,
    worker_environment,
)
from mmr1.rewards.sandbox.wire import (
    MAX_RESULT,
    REWARDS,
    VALUE,
    describe,
    read_rewards,
    unpack_answer,
)
from mmr1.rewards.sandbox.zygote import Settings
from mmr1.types import Reward, Status

logger = logging.getLogger(__name__)

VERIFIER = Job("mmr1.rewards.math.symbolic:warm", ())
START_S = 600.0
_MAX_PROBLEM = 2000  # characters
_MAX_WAIT_S = 60.0
_UNASKED = "it ended, or sent something, while nothing was asked of it"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a job that is asked for a value.

    Attributes:
        value: A JSON value; None if it failed.
        status: ``ERROR`` where the job raised, ``TIMEOUT`` or ``KILLED`` where its process ended.
        error: Why it failed.
    """

    value: Any
    status: Status = Status.OK
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Kind(Generic[T]):
    """The kind of result of jobs: how an answer is read, and the substitute for a failed one."""

    name: str
    read: Callable[[Any, int], T]
    failed: Callable[[Status, str], T]


class Pool:
    """Persistent worker processes with one job in flight each, started when first needed.

    Args:
        workers: How many processes.
        timeout_s: Seconds of CPU time for one job, held by this side.
        deadline: Time limit of one job, in place of ``timeout_s``.
        warm: A job of our own (JSON arguments) that the zygote runs first: what it imports and
            caches, the workers find done.
        prepare: A job that each worker runs first, behind its walls and before any deadline of a
            job; its JSON answer is what ``start`` returns.
        limits: Resources that a worker may use.
        readable: Files and folders that a worker may read besides Python's own.
        environment: Source of the workers' environment: they get a short list of it, and no
            secrets. This process's by default.
        cache_size: Results of cached jobs to remember, time-outs included; of a killed
            worker there is none.
        start_s: Longest wait for the warm-up, and for a worker's preparation.
        allow_weak: Work where a required wall is missing.
        walls: Raise them. Without, a worker is a process that has what this one has, and can still
            be killed; its code runs in its main thread.
        once: A worker serves one job, and another one is put in its place.
        lambdify: Leave sympy's ``lambdify``, for code that may run anything.
        max_result: Bytes of the longest answer; a worker that sends more is replaced.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 2.0,
        *,
        deadline: Deadline | None = None,
        warm: Job = VERIFIER,
        prepare: Job | None = None,
        limits: Limits | None = None,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        cache_size: int = 100_000,
        start_s: float = START_S,
        allow_weak: bool = False,
        walls: bool = True,
        once: bool = False,
        lambdify: bool = False,
        max_result: int = MAX_RESULT,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a pool has at least 1 worker, not {workers}")
        self._deadline = deadline or rule_deadline(timeout_s)
        self._warm = warm
        self._settings = Settings(limits or Limits(), readable, allow_weak, lambdify, walls)
        self._prepare = prepare
        environment = os.environ if environment is None else environment
        self._environment = worker_environment(environment) if walls else dict(environment)
        self._start_s = start_s
        self._cache: OrderedDict[Job, list[Reward]] = OrderedDict()
        self._cache_size = cache_size
        self._lock = threading.RLock()
        self._size = workers
        self._once = once
        self._max_result = max_result
        self._greeting: Any = None
        self._state = Processes()
        self._finalizer = weakref.finalize(self, Processes.end, self._state)

    def start(self) -> Any:
        """Start the processes, unless they run, and return the result of the preparation.

        Raises:
            ValueError: The warm-up or the preparation fails, or takes the process down; or a wall
                is missing.
        """
        with self._lock:
            assert self._finalizer.alive, "the pool is closed"
            if not self._state.workers:
                try:
                    self._start()
                except BaseException:
                    self._state.end()
                    raise
            return self._greeting

    @property
    def missing(self) -> Missing:
        """The walls that the workers lack, and why; known once they are started."""
        return dict(self._state.missing)

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
            done = self._run([*distinct, *(job for _, job in uncached)], _REWARDS)
            for job, rewards in zip(distinct, done, strict=False):
                results[job] = rewards
                self._remember(job, rewards)
            by_index = {i: r for (i, _), r in zip(uncached, done[len(distinct) :], strict=True)}
            return [by_index[i] if i in by_index else results[job] for i, job in enumerate(jobs)]

    def values(self, jobs: Sequence[Job], watch: Watch | None = None) -> list[Answer]:
        """The result of each job, in order; nothing is cached. Never raises for a job.

        Args:
            watch: Holds their time, in place of the deadline.
        """
        with self._lock:
            return self._run(jobs, _VALUES, watch)

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
        if any(reward.status is Status.KILLED for reward in rewards):
            return  # what killed the worker, as the OOM killer, need not be the job
        self._cache[job] = rewards
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)

    def _start(self) -> None:
        self._start_zygote()
        for _ in range(self._size):
            self._state.workers.append(self._fork())
        if line := missing_walls(self._state.missing):
            warn_of_missing_walls(line)
        while not all(worker.prepared for worker in self._state.workers):
            for worker in self._wait():
                problem = self._finish_preparation(worker)
                if problem:
                    raise ValueError(problem)

    def _start_zygote(self) -> None:
        self._state.start(self._warm, self._settings, self._environment, self._start_s)

    def _fork(self) -> Worker:
        """A new worker; its preparation is under way."""
        worker = self._state.fork()
        if self._prepare is not None:
            worker.prepared = False
            worker.watch = Stopwatch(Deadline(self._start_s), worker.pid)
            worker.send(VALUE, self._prepare)
        return worker

    def _replace(self, worker: Worker, reason: str) -> str | None:
        """Kill a worker and put a fresh one in its place, as :meth:`_renew` does."""
        report_fault(
            logger,
            "verifier/replaced",
            f"a verifier process was replaced: {reason}",
            level=logging.INFO,
        )
        return self._renew(worker)

    def _renew(self, worker: Worker) -> str | None:
        """Renew a worker; returns the error, or None. The next job tries a dead worker again."""
        place = self._state.workers.index(worker)
        self._state.kill(worker)
        worker.rest()
        try:
            self._state.workers[place] = self._fresh()
        except (ValueError, OSError, ZygoteGoneError) as error:
            return f"no verifier process can be started: {error}"
        return None

    def _fresh(self) -> Worker:
        with suppress(ZygoteGoneError):
            return self._fork()
        self._start_zygote()
        return self._fork()

    def _run(self, jobs: Sequence[Job], kind: _Kind[T], watch: Watch | None = None) -> list[T]:
        results: dict[int, T] = {}
        waiting = deque(range(len(jobs)))
        if jobs:
            self.start()
        while waiting or any(worker.index is not None for worker in self._state.workers):
            for place, worker in enumerate(self._state.workers):
                if not waiting or worker.number is not None:
                    continue
                if worker.disturbed:
                    if problem := self._replace(worker, _UNASKED):
                        results[waiting.popleft()] = kind.failed(Status.KILLED, problem)
                        continue
                    worker = self._state.workers[place]
                if worker.number is None:  # a fresh one may have to prepare first
                    worker.index = waiting.popleft()
                    worker.watch = watch or Stopwatch(self._deadline, worker.pid)
                    worker.send(kind.name, jobs[worker.index], self._max_result)
            for worker in self._wait():
                if worker.prepared:
                    assert worker.index is not None
                    index = worker.index
                    done = self._finish_job(worker, jobs[index], kind)
                    if done is not None:
                        results[index] = done
                # A worker that cannot be prepared costs a job, or this would never end.
                elif (problem := self._finish_preparation(worker)) and waiting:
                    results[waiting.popleft()] = kind.failed(Status.KILLED, problem)
        return [results[index] for index in range(len(jobs))]

    def _wait(self) -> list[Worker]:
        """The workers with an answer, or whose time is up; after a while none."""
        busy = {w.channel.fileno(): w for w in self._state.workers if w.watch is not None}
        poll = select.poll()
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN)
        patience_s = min((w.watch.wait_s for w in busy.values() if w.watch), default=0.0)
        patience_s = min(patience_s, _MAX_WAIT_S)  # poll(2) counts in milliseconds, in an int
        ready = {descriptor for descriptor, _ in poll.poll(patience_s * 1000)}
        return [w for fd, w in busy.items() if fd in ready or (w.watch and w.watch.passed)]

    def _finish_preparation(self, worker: Worker) -> str | None:
        """Read a worker's preparation: None when it is done or under way, else the error.

        A worker that fails is killed; the next job that waits for one brings a fresh one.
        """
        try:
            greeting = self._take(worker)
            if greeting is None and worker.watch and (limit := worker.watch.passed):
                raise _WorkerError(Status.TIMEOUT, f"it is not ready after {limit}")
            if greeting is None:
                return None
            self._greeting = _value(greeting)
        except _WorkerError as failure:
            self._state.kill(worker)
            worker.rest()
            return failure.error
        worker.prepared = True
        worker.rest()
        return None

    def _finish_job(self, worker: Worker, job: Job, kind: _Kind[T]) -> T | None:
        """The result of a job, or None while it runs; a failed worker is replaced."""
        try:
            answer = self._take(worker)
            if answer is not None:
                done = kind.read(answer, job.size)
                worker.rest()
                if self._once:
                    self._renew(worker)
                return done
            if worker.watch is None or not (limit := worker.watch.passed):
                return None
            failure = _WorkerError(Status.TIMEOUT, f"no verdict in {limit}")
        except _WorkerError as raised:
            failure = raised
        except ValueError as error:
            failure = _WorkerError(Status.ERROR, f"the verifier process sent {error}")
        self._replace(worker, failure.error)
        return kind.failed(failure.status, failure.error)

    def _take(self, worker: Worker) -> Any:
        """The answer to the job in flight, or None while it runs.

        Raises:
            _WorkerError: The process ended, or sent what is not an answer to this.
        """
        assert worker.number is not None
        try:
            chunk = worker.channel.recv(1 << 20)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        if not chunk:
            code = describe(self._state.kill(worker))
            raise _WorkerError(Status.KILLED, f"the verifier process ended ({code})")
        try:
            body = worker.buffer.feed(chunk)
            return None if body is None else unpack_answer(body, worker.number)
        except ValueError as error:
            raise _WorkerError(Status.ERROR, f"the verifier process sent {error}") from error


class _WorkerError(Exception):
    """A worker did not answer properly, and cannot be used any more."""

    def __init__(self, status: Status, error: str) -> None:
        super().__init__(error)
        self.status, self.error = status, error


def _value(answer: Any) -> Any:
    """The value that a preparation returned. Raises _WorkerError if it failed."""
    read = _answer(answer)
    if read.error is not None:
        raise _WorkerError(Status.ERROR, read.error)
    return read.value


def _answer(answer: Any, size: int = 1) -> Answer:
    """A value, in ``{"value": ...}`` or ``{"error": ...}``."""
    if not isinstance(answer, dict) or set(answer) not in ({"value"}, {"error"}):
        raise _WorkerError(Status.ERROR, "the verifier process sent no value")
    if "error" in answer:
        return Answer(None, Status.ERROR, str(answer["error"])[:_MAX_PROBLEM])
    return Answer(answer["value"])


_REWARDS = _Kind(REWARDS, read_rewards, lambda status, error: [invalid(status, error)])
_VALUES = _Kind(VALUE, _answer, lambda status, error: Answer(None, status, error))


def try_walls() -> Missing:
    """Start one worker and ask it; the walls that are missing, and why.

    Raises:
        ValueError: No worker starts at all.
    """
    warm = Job("mmr1.rewards.sandbox.pool:do_nothing", ())
    with Pool(1, warm=warm, allow_weak=True) as pool:
        pool.start()
        return pool.missing


def do_nothing() -> None:
    """Do nothing, for a pool without a warm-up."""
