"""Names of model families: the ``model_type`` of ``config.json``, or an entry point of a plugin.

Nothing but strings: the command line reads this module, and it must stay light.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmr1.boxes import SpaceName
from mmr1.registry import Registry

FAMILIES = Registry(
    "model family",
    {
        "qwen2_vl": "mmr1.vision.families.qwen_vl.model:QWEN2_VL",
        "qwen2_5_vl": "mmr1.vision.families.qwen_vl.model:QWEN2_5_VL",
        "qwen3_vl": "mmr1.vision.families.qwen_vl.model:QWEN3_VL",
        "qwen3_vl_moe": "mmr1.vision.families.qwen_vl.model:QWEN3_VL_MOE",
        "qwen3_5": "mmr1.vision.families.qwen_vl.model:QWEN3_5",
        "qwen2": "mmr1.vision.families.general.tiny_text:QWEN2",
        "qwen3": "mmr1.vision.families.general.tiny_text:QWEN3",
        "llama": "mmr1.vision.families.general.tiny_text:LLAMA",
        "general_vl": "mmr1.vision.families.general.model:GENERAL",
        "general_text": "mmr1.vision.families.general.model:GENERAL_TEXT",
    },
    group="mmr1.families",
)
"""Each name loads an :class:`~mmr1.vision.families.family.Architecture`."""

GENERAL = "general_vl"
"""For vision-language models of any other ``model_type``."""

GENERAL_TEXT = "general_text"
"""For text models of any other."""

COORDINATES: Mapping[str, SpaceName] = {
    "qwen2_vl": "0-1000",
    "qwen2_5_vl": "resized",
    "qwen3_vl": "0-1000",
    "qwen3_vl_moe": "0-1000",
    "qwen3_5": "0-1000",
    "internvl": "0-1000",
    "glm4v": "0-1000",
    "glm4v_moe": "0-1000",
    "glm46v": "0-1000",
}
"""The coordinate space in which models of a ``model_type`` were taught to write boxes."""

SHORT_NAMES = {"text": "qwen3"}
"""For ``mmr1 model new --family``."""

DEFAULT_FAMILY = "qwen2_5_vl"
"""The one that ``mmr1 model new`` makes."""
