"""The family of a model: found by the ``model_type`` of its configuration."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from transformers import AutoConfig, PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import (
    Architecture,
    ModelFamily,
    ModelParts,
    PackedArchitecture,
)
from mmr1.vision.families.model_path import (
    check_directory_of_model,
    family_name,
    from_pretrained,
    read_files,
    read_settings,
)
from mmr1.vision.families.registry import FAMILIES, GENERAL, GENERAL_TEXT

UNCHANGED = ChatOptions()
"""The model's own chat template."""


def load_family(
    path: str,
    chat: ChatOptions = UNCHANGED,
    trust_remote_code: bool = False,
    **media_options: float | str,
) -> ModelFamily:
    """The family of the model at ``path``, with the processor that is there.

    Args:
        path: Model directory or hub name.
        chat: Template in place of the model's chat template, and its variables.
        trust_remote_code: Code beside the model is run.
        media_options: ``fps``, ``max_frames``, ... in place of what ``video_budget`` and
            ``image_budget`` have.

    Raises:
        ValueError: If the path has no model, or no family fits it.
    """
    architecture = find_architecture(path)
    config = from_pretrained(AutoConfig, path, trust_remote_code)
    with read_files(path, "model.path", "processor and tokenizer"):
        return architecture.load_family(path, config, chat, trust_remote_code, **media_options)


def find_architecture(path: str, key: str = "model.path") -> Architecture:
    """The architecture of the model at ``path``, which the configuration names in ``key``.

    Raises:
        ValueError: If the path has no model, or no family fits it.
    """
    return architecture_named(family_name(model_settings(path, key), path, key))


@lru_cache
def architecture_named(name: str) -> Architecture:
    """The architecture by ``model_type``, ``package.module:ATTRIBUTE`` or ``file.py:ATTRIBUTE``.

    Raises:
        ValueError: If no architecture has the name.
    """
    architecture: Architecture = FAMILIES.load(name)
    return architecture


def unwrapped(model: Any) -> Any:
    """The transformers model inside a peft model; its adapters stay in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def architecture_of(model: Any) -> Architecture:
    """The architecture of a loaded transformers model, or of the one inside a peft model."""
    model_type = unwrapped(model).config.model_type
    known = model_type in FAMILIES.builtin or model_type in FAMILIES.names()
    general = GENERAL if hasattr(unwrapped(model).config, "vision_config") else GENERAL_TEXT
    return architecture_named(model_type if known else general)


def packed_architecture_of(model: Any) -> PackedArchitecture:
    """The architecture of a model whose completions share their prompt."""
    architecture = architecture_of(model)
    assert architecture.shares_prompts, "the packed forward is not for this model"
    return cast(PackedArchitecture, architecture)


def is_admitted(model: Any) -> bool:
    """True if a probe let a model without a packed family take packed sequences."""
    return getattr(unwrapped(model), "sharing_verdict", None) is not None


def model_parts(model: Any) -> ModelParts:
    """The parts of a loaded transformers model, or of the one inside a peft model."""
    return architecture_of(model).parts(unwrapped(model))


def names_in_files(model: Any) -> dict[str, str]:
    """The name in the model's files of each weight of a loaded transformers model.

    transformers renames weights of older models as it loads them; vLLM knows the names of the hub.
    """
    # Layers with adapters have theirs in a layer below, and engines get them without adapters.
    weights = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in unwrapped(model).state_dict().items()
        if ".lora_" not in name
    }
    known = {id(tensor): name for name, tensor in weights.items()}
    saved = revert_weight_conversion(unwrapped(model), weights)
    # What is not renamed only, but split or stacked, keeps its name.
    return {known[id(tensor)]: name for name, tensor in saved.items() if id(tensor) in known}


def names_of_hub(path: str, trust_remote_code: bool) -> dict[str, str]:
    """:func:`names_in_files` of the model at ``path``, whose weights take no memory."""
    auto_class = find_architecture(path).auto_class
    return names_in_files(from_pretrained(auto_class, path, trust_remote_code, device_map="meta"))


def keep_names_in_files(read: Any, model: Any) -> None:
    """Save ``model`` by the names of the files that ``read`` was loaded from.

    transformers knows them of a model that it has loaded, and guesses those of others.
    """
    model._weight_conversions = getattr(read, "_weight_conversions", None)


def model_settings(path: str, key: str = "model.path") -> dict[str, Any]:
    """Return the ``config.json`` of the model that the configuration names in ``key``.

    Raises:
        ValueError: If there is no model, or the file is no JSON object.
    """
    check_directory_of_model(path, key)
    if (file := Path(path) / "config.json").is_file():
        return read_settings(file, f"{key} '{path}'")
    try:
        # Not AutoConfig: a plugin may have to be imported before transformers knows the type.
        settings, _ = PretrainedConfig.get_config_dict(path)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{key} '{path}' does not exist here and cannot be loaded from the hub: {first_line}"
        ) from error
    return dict(settings)
