"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from concurrent.futures import Future, wait
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

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


def start_lasting(process: BaseProcess) -> None:
    """Start a process that outlives the calling thread, and that Ctrl-C does not reach.

    A process inherits which signals its thread blocks. So SIGINT is blocked from its first
    instruction on, also while it imports.

    Raises:
        BaseException: What ``process.start`` raised, or KeyboardInterrupt of the caller; the
            process is then started or has failed, but is not about to start.
    """
    started: Future[None] = Future()
    _starter().put((process, started))
    try:
        started.result()
    except BaseException:
        wait([started])
        raise


_lock = threading.Lock()
_thread: threading.Thread | None = None
_waiting: queue.SimpleQueue[tuple[BaseProcess, Future[None]]] = queue.SimpleQueue()


def _starter() -> queue.SimpleQueue[tuple[BaseProcess, Future[None]]]:
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


def _start_all(waiting: queue.SimpleQueue[tuple[BaseProcess, Future[None]]]) -> None:
    while True:
        process, started = waiting.get()
        try:
            resource_tracker.ensure_running()  # its own start unblocks SIGINT
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
