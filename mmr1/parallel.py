"""Work over many pieces on all cores: results in order, a bounded number of them in memory."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from itertools import chain
from multiprocessing import get_context
from typing import Any, TypeVar

from mmr1.lifetime import die_with
from mmr1.machine import cores

T = TypeVar("T")
ALONE_S = 1.0
"""Seconds that this process works alone. Processes take about as long to start."""
PENDING = 2
"""Pieces per process that are handed out and not yet used."""
Pools = dict[int, ProcessPoolExecutor]
"""By their number of processes."""
_kept: ContextVar[Pools | None] = ContextVar("pools", default=None)


def in_order(
    function: Callable[..., T],
    jobs: Iterable[tuple[Any, ...]],
    workers: int | None = None,
    alone_s: float = ALONE_S,
) -> Iterator[T]:
    """``function(*job)`` of every job, in their order.

    The function runs in this process for a moment, and in processes if there is more to do. So
    small work starts none. It runs in a main thread, at any place.

    Args:
        function: Function of a module, so that a process can import it.
        jobs: Its arguments; taken as they are needed.
        workers: Processes; one per core by default. With 1, everything runs here.
        alone_s: Seconds before processes are started.

    Raises:
        ValueError: A process was killed, as Linux does when memory runs out.
    """
    workers = workers or cores()
    waiting = iter(jobs)
    kept = _kept.get()
    end = time.monotonic() + alone_s
    for job in waiting:
        if workers > 1 and (time.monotonic() >= end or (kept is not None and workers in kept)):
            yield from _in_processes(function, chain([job], waiting), workers)
            return
        yield function(*job)


@contextmanager
def one_pool() -> Iterator[None]:
    """Let every :func:`in_order` of the block use the same processes, which start once."""
    kept: Pools = {}
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        for pool in kept.values():
            pool.shutdown(cancel_futures=True)


def _in_processes(
    function: Callable[..., T], jobs: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[T]:
    with ExitStack() as stack:
        if (kept := _kept.get()) is None:
            pool = spawned(workers, _leave_interrupts)
            stack.callback(pool.shutdown, cancel_futures=True)
        else:
            pool = kept[workers] = kept.get(workers) or spawned(workers, _leave_interrupts)
        yield from _results(pool, function, jobs, workers)


def spawned(
    workers: int, begin: Callable[..., None], arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool of processes that end with this one, however it ends.

    They are spawned and not forked: nothing of this process (threads, open files) leaks into them.

    Args:
        workers: How many.
        begin: Called first in each, with ``arguments``. A function of a module.
    """
    initial = (os.getpid(), begin, arguments)
    return ProcessPoolExecutor(workers, get_context("spawn"), _begin, initial)


def _begin(parent: int, begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    die_with(parent)
    begin(*arguments)


def _results(
    pool: ProcessPoolExecutor,
    function: Callable[..., T],
    jobs: Iterable[tuple[Any, ...]],
    workers: int,
) -> Iterator[T]:
    pending: deque[Future[T]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(function, *job))
            if len(pending) > PENDING * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker process was killed; if memory ran out, use fewer of them"
        ) from error
    finally:
        for future in pending:
            future.cancel()


def _leave_interrupts() -> None:
    """Ignore Ctrl-C and a closed terminal, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
