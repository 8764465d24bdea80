"""Keep freed memory in the process, where tensors live in main memory.

Every step allocates and frees the same tensors. glibc hands large ones back to the kernel at once,
and the next step pays a page fault for every 4 KiB of them again, which on a CPU can cost more than
the arithmetic. There is nothing to gain on a GPU, where torch caches device memory itself.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory rather than return it; False where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
