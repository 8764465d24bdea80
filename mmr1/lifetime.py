"""Processes that end with the one that started them, however that one ends; and their deadlines.

A verdict by rule, or the decoding of a video, is charged with the CPU time of its process: how busy
the machine is must not change it. A plugin may wait for something, so its deadline is the clock on
the wall.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_Waiting = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies; nothing on other systems.

    Linux watches the thread that started this process, not the whole parent. ``start_persistent``
    starts a process from a thread that lasts.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def start_persistent(start: Callable[[], T]) -> T:
    """Call ``start``, whose process then outlives the calling thread.

    Ctrl-C and a closed terminal do not reach the process either. A process inherits which signals
    its thread blocks. So they are blocked from its first instruction on, also while it imports.

    Args:
        start: Called in a thread that lasts as long as this process.

    Returns:
        What ``start`` returned.

    Raises:
        BaseException: If ``start`` raised it, or KeyboardInterrupt of the caller; ``start`` has
            then ended too.
    """
    done: Future[T] = Future()
    _starter().put((start, done))
    try:
        return done.result()
    except BaseException:
        wait([done])
        raise


_lock = threading.Lock()
_thread: threading.Thread | None = None
_waiting: _Waiting = queue.SimpleQueue()


def _starter() -> _Waiting:
    """The queue of the thread that starts processes; the thread ends with this process."""
    global _thread, _waiting
    with _lock:
        if _thread is None or not _thread.is_alive():  # a forked process has none
            _waiting = queue.SimpleQueue()
            _thread = threading.Thread(
                target=_start_all, args=(_waiting,), name="process starter", daemon=True
            )
            _thread.start()
        return _waiting


def _start_all(waiting: _Waiting) -> None:
    while True:
        start, done = waiting.get()
        try:
            resource_tracker.ensure_running()  # its own start unblocks SIGINT
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
            result = start()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)


_WALL_FACTOR, _LEAST_WALL_S = 30.0, 60.0
_LEAST_WAIT_S = 0.01


@dataclass(frozen=True, slots=True)
class Deadline:
    """Attributes:
    wall_s: Seconds on the wall.
    cpu_s: Seconds of CPU time of the process; None charges none.
    """

    wall_s: float
    cpu_s: float | None = None

    def __str__(self) -> str:
        return f"{self.wall_s:g} s" if self.cpu_s is None else f"{self.cpu_s:g} s of CPU time"


def rule_deadline(timeout_s: float) -> Deadline:
    """``timeout_s`` of CPU time; on the wall as much as a very busy machine may need for it."""
    return Deadline(max(_LEAST_WALL_S, _WALL_FACTOR * timeout_s), timeout_s)


class Watch(Protocol):
    """Tells when a job of a process has used up its time."""

    @property
    def passed(self) -> str | None:
        """The limit that has been passed, in words, or None."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds to wait before looking again."""
        ...


class Stopwatch:
    """The time that one job of a process has taken, held against a deadline from here on."""

    def __init__(self, deadline: Deadline, pid: int) -> None:
        self._deadline, self._pid = deadline, pid
        self._wall_end = time.monotonic() + deadline.wall_s
        self._cpu_start = None if deadline.cpu_s is None else cpu_seconds(pid)

    @property
    def passed(self) -> str | None:
        """The limit that has been passed, in words, or None."""
        wall_left, cpu_left = self._left()
        if wall_left <= 0:
            return f"{self._deadline.wall_s:g} s"
        return str(self._deadline) if cpu_left <= 0 else None

    @property
    def wait_s(self) -> float:
        """Seconds to wait before looking again: no limit is passed sooner by one thread."""
        return max(_LEAST_WAIT_S, min(self._left()))

    def _left(self) -> tuple[float, float]:
        """Seconds left, on the wall and of CPU time."""
        wall, cpu = self._wall_end - time.monotonic(), float("inf")
        if self._deadline.cpu_s is not None and self._cpu_start is not None:
            used = cpu_seconds(self._pid)
            if used is not None:
                cpu = self._deadline.cpu_s - (used - self._cpu_start)
        return wall, cpu


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process, all threads, or None when it cannot be read.

    clock_getcpuclockid(3): on Linux a process's clock has the number that is made of its id here.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, AttributeError):
        return None
