"""Qwen-Omni's thinkers: general models, of which there are small ones."""

from __future__ import annotations

from functools import partial

from mmr1.vision.families.general import tiny_omni
from mmr1.vision.families.general.model import GeneralArchitecture

QWEN2_5_OMNI, QWEN3_OMNI = (
    GeneralArchitecture(tiny_omni.PRESETS, partial(tiny_omni.new_model, model_type))
    for model_type in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
)
