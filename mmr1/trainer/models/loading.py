"""The model of a configuration, loaded and made ready to be trained."""

from __future__ import annotations

from typing import Any

import torch

from mmr1.config import Config, ModelConfig
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.vision.families.loading import find_architecture, model_parts
from mmr1.vision.features import FeatureCache


def load_model(config: ModelConfig) -> Any:
    """The model on the GPU if there is one.

    Raises:
        ValueError: There is no model at ``config.path``, or no family for it.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    auto_class = find_architecture(config.path).auto_class
    return auto_class.from_pretrained(config.path, dtype=getattr(torch, config.dtype)).to(device)


def load_trainable(config: ModelConfig) -> Any:
    """The model to be trained: tower frozen, activations checkpointed, adapters on, where asked.

    Raises:
        ValueError: The adapters fit no layer.
    """
    model = load_model(config)
    tower = model_parts(model).tower
    if config.freeze_vision_tower and tower is not None:
        tower.requires_grad_(False)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora is None:
        return model
    return add_adapters(model, config.lora, config.freeze_vision_tower)


def feature_cache(config: Config) -> FeatureCache | None:
    """Kept vision features where the tower is frozen: they never change."""
    return FeatureCache() if config.model.freeze_vision_tower else None


def build_packed_model(
    config: Config,
    model: Any,
    inputs: ModelInputs,
    temperature: float,
    features: FeatureCache | None = None,
) -> PackedModel:
    """``model`` with packed forwards that need no more memory than the configuration allows."""
    return PackedModel(
        model,
        inputs,
        temperature,
        config.trainer.micro_batch_tokens,
        config.trainer.vision_token_cost,
        features,
    )
