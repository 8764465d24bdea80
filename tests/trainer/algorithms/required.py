"""Keys without which an algorithm cannot be configured, with values that any test may use."""

from __future__ import annotations

from typing import Any

from mmr1.config import AlgorithmConfig

REQUIRED: dict[str, dict[str, Any]] = {
    "process_grpo": {"step_rewards": "x.py:f"},
    "on_policy_distillation": {"ref_model_path": "teacher"},
    "kl_cov": {"ppo_epochs": 2},
}


def config_of(name: str, **keys: Any) -> AlgorithmConfig:
    """The section of an algorithm."""
    return AlgorithmConfig(name=name, **{**REQUIRED.get(name, {}), **keys})
