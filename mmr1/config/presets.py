"""Named algorithms: values for ``advantage``, ``loss`` and ``filter_groups``.

Some also say how ``kl`` begins where a configuration opens it. No code asks for the name of a
preset. Their papers are in docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PARTS = ("advantage", "loss", "filter_groups")
"""The sections that a preset lays down in full."""

_PPO = {"type": "ppo"}


def _preset(
    advantage: dict[str, Any], loss: dict[str, Any], filter_groups: dict[str, Any] | None = None
) -> Mapping[str, Any]:
    return MappingProxyType({"advantage": advantage, "loss": loss, "filter_groups": filter_groups})


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": _preset({"type": "grpo"}, _PPO),
        "dr_grpo": _preset(
            {"type": "grpo", "scale_rewards": "none"},
            {"type": "ppo", "agg_mode": "seq-mean-token-sum-norm"},
        ),
        # Its overlong shaping (section 3.4) is the reward function `overlong`.
        "dapo": _preset({"type": "grpo"}, {**_PPO, "clip_ratio_high": 0.28}, {"type": "resample"}),
        "gspo": _preset({"type": "grpo"}, {"type": "gspo"}),
        "cispo": _preset({"type": "grpo"}, {"type": "cispo"}),
        "sapo": _preset({"type": "grpo"}, {"type": "sapo"}),
        "clip_cov": _preset({"type": "grpo"}, {"type": "clip_cov"}),
        "kl_cov": _preset({"type": "grpo"}, {"type": "kl_cov"}),
        "rloo": _preset({"type": "rloo"}, _PPO),
        "gpg": _preset({"type": "gpg"}, _PPO),
        "reinforce": _preset({"type": "reinforce"}, _PPO),
        "remax": _preset({"type": "remax"}, _PPO),
        "reinforce_pp": _preset({"type": "reinforce_pp"}, _PPO),
        "reinforce_pp_baseline": _preset({"type": "reinforce_pp_baseline"}, _PPO),
        "ppo": _preset({"type": "gae"}, _PPO),
        "process_grpo": _preset({"type": "process"}, _PPO),
        "on_policy_distillation": _preset({"type": "distillation"}, _PPO),
    }
)

OPENED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ppo": {"type": "reward"},
        "reinforce_pp": {"type": "reward"},
        "reinforce_pp_baseline": {"type": "loss", "estimator": "k2"},
    }
)
"""How the section ``algorithm.kl`` begins under a preset where a configuration opens it."""


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an ``algorithm`` section over those of its preset.

    A section of another type than the preset's keeps nothing of the preset's.
    """
    name = values.get("name", "grpo")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    parts = {key: _over(preset[key], values.get(key, preset[key])) for key in preset}
    filled = {**values, **parts}
    if name in OPENED and isinstance(values.get("kl"), Mapping):
        filled["kl"] = _over(OPENED[name], values["kl"])
    return filled


def _over(preset: Any, given: Any) -> Any:
    if not isinstance(given, Mapping) or preset is None:
        return given
    same = given.get("type", preset["type"]) == preset["type"]
    return {**preset, **given} if same else given
