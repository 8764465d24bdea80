"""Properties of this machine, found without importing torch: cores, a GPU, bfloat16.

A CPU without instructions for bfloat16 emulates it in float32, which is slower than float32.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Literal

CPUINFO = Path("/proc/cpuinfo")
GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""Of the drivers of Nvidia and AMD."""
_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "Arm BF16"}
"""By the names that Linux has for them, the fastest first."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def native_bfloat16() -> str | None:
    """The instructions by which this CPU computes in bfloat16; None if none are known.

    Only Linux tells them.
    """
    flags: set[str] = set()
    if CPUINFO.is_file():
        for line in CPUINFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):  # of x86 and of Arm
                flags.update(value.split())
    return next((known for flag, known in _INSTRUCTIONS.items() if flag in flags), None)


def has_gpu() -> bool:
    """True if torch will find a GPU, judging by the driver's files and torch's build."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if importlib.metadata.version("torch").endswith("+cpu"):
        return False
    return any(path.exists() for path in GPU_FILES)


def auto_dtype() -> Literal["float32", "bfloat16"]:
    """The data type that ``auto`` stands for on this machine."""
    return "bfloat16" if has_gpu() or native_bfloat16() else "float32"
