"""Decodes and prepares media in processes of their own.

Decoding and cutting into patches scale over processes, not over threads. The processes load the
processor once, when the first medium is asked for, and end with this process.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor

import torch

from mmr1.lifetime import die_with, start_lasting
from mmr1.types import MediaRef
from mmr1.vision.media_environment import forget_environment
from mmr1.vision.prepare import Medium

Prepare = Callable[[MediaRef], Medium]

_prepare: Prepare | None = None
"""What a worker process prepares with."""


class Preparers:
    """A pool of processes.

    Args:
        load: Module-level function, or a partial of one: makes the function that prepares.
        workers: Processes, at least 1.
    """

    def __init__(self, load: Callable[[], Prepare], workers: int) -> None:
        self._pool = ProcessPoolExecutor(
            workers, mp.get_context("spawn"), initializer=_begin, initargs=(load, os.getpid())
        )

    def submit(self, media: MediaRef) -> Future[Medium]:
        """Prepare it; the future raises what preparing raised."""
        # Submitting may start a process, and a rollout thread may end before it.
        return start_lasting(lambda: self._pool.submit(_run, media))


def _begin(load: Callable[[], Prepare], parent: int) -> None:
    global _prepare
    die_with(parent)
    torch.set_num_threads(1)
    _prepare = load()
    forget_environment()


def _run(media: MediaRef) -> Medium:
    assert _prepare is not None, "the initializer has run"
    return _prepare(media)
