"""Named algorithms: values for ``advantage``, ``loss`` and ``filter_groups``.

Some also say how ``kl`` begins where a configuration opens it. Each stands in the file of the part
that it is about (``mmr1/algorithms``). No code asks for the name of a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1.algorithms import presets

_PLAIN: Mapping[str, Any] = {
    "advantage": {"type": "grpo"},
    "loss": {"type": "ppo"},
    "filter_groups": None,
}
PARTS = tuple(_PLAIN)
"""The sections that a preset lays down in full."""
PRESETS: Mapping[str, Mapping[str, Any]] = {n: {**_PLAIN, **p.values} for n, p in presets().items()}


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an ``algorithm`` section over those of its preset.

    A section of another type than the preset's keeps nothing of the preset's. One that is no part
    is filled where the values open it.
    """
    name = values.get("name", "grpo")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    filled = {
        key: _over(own, values.get(key, own if key in PARTS else None))
        for key, own in preset.items()
        if key in PARTS or isinstance(values.get(key), Mapping)
    }
    return {**values, **filled}


def _over(preset: Any, given: Any) -> Any:
    if not isinstance(given, Mapping) or preset is None:
        return given
    same = given.get("type", preset["type"]) == preset["type"]
    return {**preset, **given} if same else given
