"""The processes of an environment: each with a thread's patience, none waiting for another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from mmr1.config import EnvironmentConfig
from mmr1.environments.styles import is_tool_file
from mmr1.lifetime import Deadline, Watch
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.pool import Answer, Pool
from mmr1.rewards.sandbox.walls import GIB, Limits, plugin_paths
from mmr1.types import Status

REPLACED = "its process was replaced, after another conversation had brought it down"
_ANSWER = 1 << 16
"""Bytes of an answer of the policy's code besides its text, an error's included."""
_ESCAPED = 12
"""Bytes of the longest character in JSON."""
_LIMITS = Limits(memory=8 * GIB, open_files=256)


def readable_of(spec: str, config: EnvironmentConfig) -> tuple[str, ...]:
    """The files that a tool may read: the folder of its file, and those in the configuration."""
    readable = config.sandbox.readable if config.sandbox is not None else ()
    return plugin_paths(f"{spec}:" if is_tool_file(spec) else spec, readable)


def tool_workers(
    config: EnvironmentConfig, specs: Sequence[str], prepare: Job | None = None
) -> ToolWorkers:
    """Processes for tools and environments.

    Args:
        config: The section ``environment``.
        specs: Files that the workers import.
        prepare: A job that each runs first.
    """
    readable = [path for spec in specs for path in readable_of(spec, config)]
    walls = config.sandbox is not None
    warm = Job("mmr1.environments.worker:warm_up", (walls,))
    return ToolWorkers(
        config.workers,
        config.timeout_s,
        warm=warm,
        prepare=prepare,
        limits=_LIMITS,
        readable=readable,
        walls=walls,
    )


def code_workers(config: EnvironmentConfig) -> ToolWorkers:
    """Processes for the policy's own code: each serves one call, opens nothing, has one thread."""
    warm = Job("mmr1.environments.interpreter:warm_up", ())
    limits = Limits(memory=2 * GIB, open_files=0, threads=False)
    longest = _ANSWER + _ESCAPED * config.max_characters
    return ToolWorkers(
        config.workers,
        config.timeout_s,
        warm=warm,
        limits=limits,
        once=True,
        lambdify=True,
        max_result=longest,
    )


class Budget:
    """Seconds that the tools of one conversation may take together."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._lock = threading.Lock()

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left -= seconds

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


class ToolWorkers:
    """Processes that threads ask, as many at a time.

    Args:
        count: Number of processes.
        timeout_s: Seconds that one call may take.
        of_pool: The other parameters of each process's :class:`Pool`.
    """

    def __init__(self, count: int, timeout_s: float, **of_pool: Any) -> None:
        self._timeout_s = timeout_s
        self._pools = [Pool(1, deadline=Deadline(timeout_s), **of_pool) for _ in range(count)]
        self._idle: queue.SimpleQueue[Pool] = queue.SimpleQueue()
        for pool in self._pools:
            self._idle.put(pool)

    def start(self) -> Any:
        """Start the processes, and return what the preparation returned.

        Raises:
            ValueError: If the processes cannot import what they need.
        """
        greetings = [pool.start() for pool in self._pools]
        return greetings[0]

    def call(
        self,
        target: str,
        *args: Any,
        worker: int | None = None,
        budget: Budget | None = None,
        module: str = "mmr1.environments.worker",
        watch: Watch | None = None,
    ) -> Answer:
        """Run one job in an idle process; in that of number ``worker``, modulo theirs, if given.

        A process that takes too long is killed, and another one is put in its place. The time that
        the job takes is taken from ``budget``; waiting for an idle process is not. A ``watch``
        holds it in place of ``environment.timeout_s``.
        """
        job = Job(f"{module}:{target}", args, cached=False)
        if worker is not None:
            return self._ask(self._pools[worker % len(self._pools)], job, budget, watch)
        pool = self._idle.get()
        try:
            return self._ask(pool, job, budget, watch)
        finally:
            self._idle.put(pool)

    def _ask(self, pool: Pool, job: Job, budget: Budget | None, watch: Watch | None) -> Answer:
        begin = time.monotonic()
        answer = self._readable(pool.values([job], watch)[0])
        if budget is not None:
            budget.spend(time.monotonic() - begin)
        return answer

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def _readable(self, answer: Answer) -> Answer:
        if answer.status == Status.TIMEOUT:
            return Answer(None, answer.status, f"no answer in {self._timeout_s:g} s")
        if answer.status == Status.KILLED:
            return Answer(None, answer.status, "its process ended")
        return answer
