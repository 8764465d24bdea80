"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing import resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")
_Waiting = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies; nothing on other systems.

    Linux watches the thread that started this process, not the whole parent. ``start_lasting``
    starts a process from a thread that lasts.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def start_lasting(start: Callable[[], T]) -> T:
    """Call what starts a process, such that the process outlives the calling thread.

    Ctrl-C and a closed terminal do not reach the process either. A process inherits which signals
    its thread blocks. So they are blocked from its first instruction on, also while it imports.

    Args:
        start: Called in a thread that lasts as long as this process.

    Returns:
        What ``start`` returned.

    Raises:
        BaseException: What ``start`` raised, or KeyboardInterrupt of the caller; ``start`` has
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
