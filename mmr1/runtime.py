"""Torch in this process: its seed, its threads, and the memory it frees.

A step allocates and frees tensors of the same sizes again and again. glibc hands large ones back
to the kernel at once, and the next one pays a page fault for every 4 KiB of it, which on a CPU can
cost more than the arithmetic. So freed memory is kept within a step, and from step to step as much
as a step needs. What grows beyond that is returned: with a large vocabulary and ragged lengths the
pieces that fit no later tensor would pile up. There is nothing to gain on a GPU, where torch caches
device memory itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from mmr1.machine import native_bfloat16

logger = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc.h
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def set_up_torch(
    seed: int,
    threads: int | None = None,
    deterministic: bool = False,
    expandable_segments: bool = False,
) -> None:
    """Seed torch, bound its CPU threads, keep transformers' progress bars out of ours.

    Called before the first use of a GPU. Float32 convolutions are not rounded to TF32, which cuDNN
    would do by default, and products are not.

    Args:
        deterministic: Operations give the same bits in every run, and those that have no such form
            on a GPU warn.
        expandable_segments: Where nothing else is set, the CUDA allocator grows its segments, and
            loses less to fragments. Not in a process that hands its GPU memory to another one.
    """
    disable_progress_bar()
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it as it starts
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    if not torch.cuda.is_available():
        keep_freed_memory()
    elif expandable_segments and not any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        # Not by the environment, which engines in separate processes would inherit.
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.manual_seed(seed)
    if threads is not None:
        torch.set_num_threads(threads)


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory rather than return it; False where there is no glibc."""
    global _malloc_trim
    if sys.platform != "linux":
        return False
    glibc = ctypes.CDLL(None)
    if not hasattr(glibc, "mallopt"):
        return False
    kept = glibc.mallopt(M_MMAP_MAX, 0) and glibc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    _malloc_trim = getattr(glibc, "malloc_trim", None) if kept else None
    return bool(kept)


_malloc_trim: Callable[[int], int] | None = None


def return_freed_memory() -> None:
    """Return what ``keep_freed_memory`` has kept to the kernel."""
    if _malloc_trim is not None:
        _malloc_trim(0)


class FreedMemory:
    """Keeps as much freed memory from step to step as a step needs, and returns what has grown.

    A step that begins with nothing kept shows what it needs: by so much the process has grown at
    its end. Memory that was returned costs a page fault for each page that is used again.
    """

    SLACK = 1.25
    """Share of the largest need that may be kept: steps differ in length."""

    def __init__(self) -> None:
        self._bare = self._need = 0
        self._is_bare = False

    def end_step(self) -> None:
        """Return freed memory to the kernel if more is kept than the neediest step has used."""
        if _malloc_trim is None:
            return
        resident = anonymous_bytes()
        if self._is_bare:
            self._need = max(self._need, resident - self._bare)
        self._is_bare = resident > self._bare + self.SLACK * self._need
        if self._is_bare:
            return_freed_memory()
            self._bare = anonymous_bytes()


def anonymous_bytes() -> int:
    """Memory of this process that no file backs, in bytes, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def heap_frozen() -> Iterator[None]:
    """Exempt existing objects from garbage collection inside the block.

    A million objects are the modules of torch and transformers. A step makes many new ones, and
    collections follow each other.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def bfloat16_cost(size: int = 512, rounds: int = 3) -> float:
    """CPU time of a matrix product in bfloat16 over that in float32, measured on this machine."""

    def seconds(dtype: torch.dtype) -> float:
        left, right = torch.ones(2, size, size, dtype=dtype)
        left @ right  # the first one prepares
        spent = []
        for _ in range(rounds):
            begin = time.process_time()
            left @ right
            spent.append(time.process_time() - begin)
        return min(spent)

    return seconds(torch.bfloat16) / seconds(torch.float32)


def warn_of_emulated_bfloat16(keys: Mapping[str, str]) -> None:
    """Warn about a CPU that is to compute in bfloat16 without instructions for it.

    Args:
        keys: Data types by the keys of the configuration that chose them.
    """
    chosen = [key for key, dtype in keys.items() if dtype == "bfloat16"]
    if not chosen or torch.cuda.is_available() or native_bfloat16():
        return
    logger.warning(
        "%s: this CPU has no instructions for bfloat16 and emulates it; a matrix product takes "
        "%.1f times the CPU time of float32. Set float32, or auto",
        " and ".join(f"{key}=bfloat16" for key in chosen),
        bfloat16_cost(),
    )
