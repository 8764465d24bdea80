"""Keys without which a preset, an advantage or a loss cannot be configured, for any test."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mmr1.config import AlgorithmConfig
from mmr1.part import Kind

_STEPS = {"step_rewards": "x.py:f"}
_TEACHER = {"teacher": {"path": "teacher"}}
REQUIRED: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "process_grpo": {"advantage": _STEPS},
        "on_policy_distillation": {"advantage": _TEACHER},
        "kl_cov": {"ppo_epochs": 2},
    }
)


def settings_of(kind: Kind, name: str) -> dict[str, Any]:
    """The settings of a part's example; a part that needs some has them there."""
    return dict(kind.parts[name].example.get("settings", {}))


def config_of(name: str, **keys: Any) -> AlgorithmConfig:
    """The section of a preset; the keys of ``advantage`` are added to those it needs."""
    needed = REQUIRED.get(name, {})
    advantage = {**needed.get("advantage", {}), **keys.pop("advantage", {})}
    return AlgorithmConfig(
        name=name, **{**needed, **keys, **({"advantage": advantage} if advantage else {})}
    )
