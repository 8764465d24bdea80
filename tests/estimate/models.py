"""Configurations of runs, and a model of which there is only a configuration."""

from __future__ import annotations

from mmr1.config import Config

# Shapes of Qwen2.5-VL-3B as published.
THREE_B = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
}


def config_for(path, **sections) -> Config:
    return Config.model_validate(
        {"model": {"path": str(path), **sections.pop("model", {})}, **sections}
    )
