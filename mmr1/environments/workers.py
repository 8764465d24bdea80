"""The processes of an environment: each with a thread's patience, none waiting for another."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from mmr1.config import EnvironmentConfig
from mmr1.deadline import Deadline
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.limits import GIB, Limits
from mmr1.rewards.sandbox.pool import Answer, Pool
from mmr1.rewards.sandbox.readable import plugin_paths
from mmr1.types import Status

_LIMITS = Limits(memory=8 * GIB, open_files=256)


class ToolWorkers:
    """``environment.workers`` sandboxed processes; threads ask them, as many at a time.

    Args:
        config: The section ``environment``.
        specs: What they import.
        prepare: A job that each runs first.
    """

    def __init__(
        self, config: EnvironmentConfig, specs: Sequence[str], prepare: Job | None = None
    ) -> None:
        readable = [path for spec in specs for path in plugin_paths(spec, config.readable)]
        self._timeout_s = config.timeout_s
        self._pools = [
            Pool(
                1,
                deadline=Deadline(config.timeout_s),
                warm=Job("mmr1.environments.worker:imported", ()),
                prepare=prepare,
                limits=_LIMITS,
                readable=readable,
                start_s=config.start_timeout_s,
            )
            for _ in range(config.workers)
        ]
        self._idle: queue.SimpleQueue[Pool] = queue.SimpleQueue()
        for pool in self._pools:
            self._idle.put(pool)

    def start(self) -> None:
        """Start the processes. Raises ValueError if they cannot import what they need."""
        for pool in self._pools:
            pool.start()

    def call(self, target: str, *args: Any, worker: int | None = None) -> Answer:
        """Run one job in an idle process; in that of number ``worker``, modulo theirs, if given.

        A process that takes too long is killed, and another one is put in its place.
        """
        job = Job(f"mmr1.environments.worker:{target}", args, cached=False)
        if worker is not None:
            return self._readable(self._pools[worker % len(self._pools)].values([job])[0])
        pool = self._idle.get()
        try:
            return self._readable(pool.values([job])[0])
        finally:
            self._idle.put(pool)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def _readable(self, answer: Answer) -> Answer:
        if answer.status == Status.TIMEOUT:
            return Answer(None, answer.status, f"no answer in {self._timeout_s:g} s")
        if answer.status == Status.KILLED:
            return Answer(None, answer.status, "its process ended")
        return answer
