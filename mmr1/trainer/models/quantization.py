"""QLoRA (arXiv 2305.14314): the weights below the adapters in 4 bits, by bitsandbytes.

Quantized are the linear layers but the output head. Outside the trainer nobody sees that: engines
and checkpoints get the weights as the trainer computes with them, dequantized, adapters merged.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from mmr1.config import ModelConfig
from mmr1.vision.families.loading import model_settings


def loads_in_4_bits(config: ModelConfig) -> bool:
    """Return whether the weights below the adapters are in 4 bits: asked for, or in the files."""
    if config.lora is None:
        return False
    return config.lora.load_in_4bit or stored_quantization(config.path) == IN_4_BITS


IN_4_BITS = "bitsandbytes in 4 bits"


def stored_quantization(path: str, key: str = "model.path") -> str | None:
    """Return the method by which a model's files are quantized; None if they are not."""
    settings = model_settings(path, key).get("quantization_config")
    if not isinstance(settings, dict) or not settings:
        return None
    method = str(settings.get("quant_method", "an unknown method"))
    if method != "bitsandbytes":
        return method
    return IN_4_BITS if settings.get("load_in_4bit") else "bitsandbytes in 8 bits"


def refuse_quantized(config: ModelConfig, key: str) -> None:
    """Refuse a model whose files are quantized, where its weights are needed whole.

    Raises:
        ValueError: If they are.
    """
    method = stored_quantization(config.path, key)
    if method is None:
        return
    remedy = "name the model that it was made from"
    if method == IN_4_BITS:
        remedy = f"train it below adapters (model.lora={{}}, QLoRA), or {remedy}"
    raise ValueError(f"{key} '{config.path}': its weights are quantized by {method}; {remedy}")


def quantization(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for weights in 4 bits.

    Where ``model.lora.load_in_4bit`` makes them, they are NF4 with quantized constants (double
    quantization), sections 3 and 2 of the paper; matrix products are in ``model.dtype``.

    Raises:
        ValueError: If bitsandbytes is not installed, or the files have quantized weights of
            another kind.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            "weights in 4 bits (model.lora.load_in_4bit, or those of model.path) need "
            "bitsandbytes, which is not installed; pip install 'mmr1[qlora]', or take whole ones"
        )
    # Quantized where they will stay: such weights are not to be moved.
    place = {"device_map": {"": "cuda" if torch.cuda.is_available() else "cpu"}}
    if stored_quantization(config.path) == IN_4_BITS:
        return place
    refuse_quantized(config, "model.path")
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": settings, **place}


def keep_layout(model: Any) -> None:
    """Keep the layout of the weights when the model samples or scores.

    On a CPU with bfloat16 instructions bitsandbytes would lay them out for inference alone, and an
    update after that would fail.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_quantized(model: Any) -> bool:
    return getattr(model, "hf_quantizer", None) is not None


def quantized_weights(model: Any) -> Mapping[str, torch.nn.Parameter]:
    """The weights in 4 bits, by their names in the model."""
    return {name: p for name, p in model.named_parameters() if hasattr(p, "quant_state")}


def dequantized(weight: Any) -> torch.Tensor:
    """A weight in 4 bits, as the forward pass dequantizes it."""
    from bitsandbytes.functional import dequantize_4bit

    tensor: torch.Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return tensor


def is_constant(name: str) -> bool:
    """True if this entry of a state dict is a constant of the quantization, beside its weight."""
    return ".weight." in name


@contextmanager
def saved_as_plain(model: Any) -> Iterator[None]:
    """Save the model with the weights that it is given, and not as a quantized one."""
    if not is_quantized(model):
        yield
        return
    quantizer, settings = model.hf_quantizer, model.config.quantization_config
    conversions = getattr(model, "_weight_conversions", None)
    model.hf_quantizer = None
    del model.config.quantization_config
    # Of stored weights in 4 bits transformers knows no way back to whole ones.
    model._weight_conversions = [c for c in conversions or () if not _quantizes(c)] or None
    try:
        yield
    finally:
        model.hf_quantizer, model.config.quantization_config = quantizer, settings
        model._weight_conversions = conversions


def _quantizes(conversion: Any) -> bool:
    operations = getattr(conversion, "operations", None) or ()
    return any(type(o).__module__.startswith("transformers.integrations") for o in operations)
