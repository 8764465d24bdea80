"""Environment variables that vLLM and torch read at import. Imports no torch."""

from __future__ import annotations

import os


def set_vllm_defaults(on_cpu: bool) -> None:
    """Environment variables that vLLM and torch read at import, where the user set no others."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine stays in its process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if on_cpu:
        # Compiling costs 8-16 s at the first generate and gains nothing at the sizes a CPU runs.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
