"""Models with peft adapters, for code that needs no peft."""

from __future__ import annotations

from typing import Any


def has_adapters(model: Any) -> bool:
    """True for a peft model."""
    return hasattr(model, "get_base_model")


def unwrapped(model: Any) -> Any:
    """The transformers model inside a peft model; its adapters stay in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
