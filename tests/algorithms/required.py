"""Keys without which a preset, an advantage or a loss cannot be configured, for any test."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mmr1.config import AlgorithmConfig

_STEPS = {"step_rewards": "x.py:f"}
_TEACHER = {"teacher": {"path": "teacher"}}
REQUIRED: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "process_grpo": {"advantage": _STEPS},
        "on_policy_distillation": {"advantage": _TEACHER},
        "kl_cov": {"ppo_epochs": 2},
    }
)
OF_ADVANTAGES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {"process": _STEPS, "distillation": _TEACHER}
)
OF_LOSSES: Mapping[str, dict[str, Any]] = MappingProxyType({"ppo_kl": {"coef": 0.5}})


def config_of(name: str, **keys: Any) -> AlgorithmConfig:
    """The section of a preset; the keys of ``advantage`` are added to those it needs."""
    needed = REQUIRED.get(name, {})
    advantage = {**needed.get("advantage", {}), **keys.pop("advantage", {})}
    return AlgorithmConfig(
        name=name, **{**needed, **keys, **({"advantage": advantage} if advantage else {})}
    )
