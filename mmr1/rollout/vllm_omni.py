"""Qwen-Omni's thinkers in vLLM, which knows them as parts of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import (
    AutoConfig,
    PreTrainedConfig,
    Qwen2_5OmniConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeThinkerConfig,
)

_WHOLE: dict[type[PreTrainedConfig], tuple[type[PreTrainedConfig], str]] = {
    Qwen2_5OmniThinkerConfig: (Qwen2_5OmniConfig, "Qwen2_5OmniModel"),
    Qwen3OmniMoeThinkerConfig: (Qwen3OmniMoeConfig, "Qwen3OmniMoeForConditionalGeneration"),
}
"""By a thinker's configuration: that of the whole model, and its architecture in vLLM."""


def thinker_settings(model_path: str, workers: int, trust_remote_code: bool) -> dict[str, Any]:
    """vLLM's further arguments for a thinker; none for any other model.

    vLLM 0.32 reads a whole model, whose weights are named ``thinker.model...``. Of a thinker by
    itself it is given the configuration of a whole one, and the names without that beginning.

    Raises:
        ValueError: It runs in several processes: the names are told in this one.
    """
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    if type(config) not in _WHOLE:
        return {}
    if workers > 1:
        raise ValueError(
            f"model.path '{model_path}' is a {config.model_type}, which one process of vLLM runs "
            "here; set rollout.engine.tensor_parallel_size=1"
        )
    whole, architecture = _WHOLE[type(config)]
    take_names_of_thinkers([architecture])
    return {"hf_overrides": partial(_as_whole, whole, architecture)}


def _as_whole(
    whole: type[PreTrainedConfig], architecture: str, thinker: PreTrainedConfig
) -> PreTrainedConfig:
    config = whole(thinker_config=thinker.to_dict())
    config.architectures = [architecture]
    return config


def take_names_of_thinkers(architectures: Sequence[str]) -> None:
    """Have vLLM read thinkers by themselves; nothing for other architectures."""
    for _, architecture in _WHOLE.values():
        if architecture in architectures:
            _take_names(architecture)


def _take_names(architecture: str) -> None:
    from vllm import ModelRegistry

    mapper = ModelRegistry.models[architecture].load_model_cls().hf_to_vllm_mapper
    for part in ("lm_head.", "model."):  # after those that begin with "thinker."
        mapper.orig_to_new_prefix.setdefault(part, f"language_model.{part}")
