"""The family of a model: found by the ``model_type`` of its configuration."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from mmr1.adapters import unwrapped
from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import Architecture, ModelFamily, ModelParts
from mmr1.vision.families.model_path import check_directory_of_model, check_model_type
from mmr1.vision.families.registry import FAMILIES

UNCHANGED = ChatOptions()
"""The model's own chat template."""


def load_family(path: str, chat: ChatOptions = UNCHANGED, **media_options: float) -> ModelFamily:
    """The family of the model at ``path``, with the processor that is there.

    Args:
        path: Model directory or hub name.
        chat: What replaces the model's chat template, and its variables.
        media_options: ``fps``, ``max_frames``, ... in place of what ``video_budget`` and
            ``image_budget`` have.

    Raises:
        ValueError: There is no model at ``path``, or no family for it.
    """
    architecture = find_architecture(path)
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path '{path}' has no configuration to read: {error}") from error
    return architecture.load_family(path, config, chat, **media_options)


def find_architecture(path: str, key: str = "model.path") -> Architecture:
    """The architecture of the model at ``path``, which the configuration names in ``key``.

    Raises:
        ValueError: There is no model, or no family for it.
    """
    model_type = _model_type(path, key)
    check_model_type(model_type, path, key)
    return architecture_named(model_type)


@lru_cache
def architecture_named(name: str) -> Architecture:
    """By ``model_type``, or ``package.module:ATTRIBUTE``, or ``file.py:ATTRIBUTE``.

    Raises:
        ValueError: There is none of this name.
    """
    architecture: Architecture = FAMILIES.load(name)
    return architecture


def architecture_of(model: Any) -> Architecture:
    """The architecture of a loaded transformers model, or of the one inside a peft model."""
    return architecture_named(unwrapped(model).config.model_type)


def model_parts(model: Any) -> ModelParts:
    """The parts of a loaded transformers model, or of the one inside a peft model."""
    return architecture_of(model).parts(unwrapped(model))


def _model_type(path: str, key: str) -> str:
    check_directory_of_model(path, key)
    try:
        # Not AutoConfig: a plugin may have to be imported before transformers knows the type.
        settings, _ = PretrainedConfig.get_config_dict(path)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{key} '{path}' does not exist here and cannot be had from the hub: {first_line}"
        ) from error
    return str(settings.get("model_type"))
