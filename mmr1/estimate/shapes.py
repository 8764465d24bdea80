"""The sizes of a model, from its configuration alone."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from transformers import AutoConfig

from mmr1.config import Config, ModelConfig
from mmr1.trainer.forward.any_model.recurrent import has_states
from mmr1.trainer.forward.any_model.sharing import Examples, verdict_on
from mmr1.trainer.models.lora import add_adapters
from mmr1.vision.families.family import ModelShape
from mmr1.vision.families.loading import find_architecture, load_family
from mmr1.vision.families.model_path import from_pretrained


@dataclass(frozen=True, slots=True)
class Shapes:
    """Numbers of elements of a model's weights, and the sizes of its layers.

    Attributes:
        weights: Adapters not counted.
        quantized: Parameters that the trainer has in 4 bits, whole on each rank; they are not
            counted in ``tower``, ``layer`` and ``outside_layers``.
        trained: Weights or adapters that have a gradient.
        adapters: Parameters of LoRA's adapters, if there are any.
        tower: Parameters of the vision tower.
        layer: Parameters of one layer of the language model.
        outside_layers: Parameters of the embeddings and of all else that ranks gather for a whole
            forward.
        largest: Parameters of the largest weight.
        output: Parameters of the output embedding.
        trains_output: It has a gradient, and so have the layers.
        vocabulary: Tokens of the output embedding.
        model: Sizes of the layers.
        shares_prompts: Completions share their prompt in the forward.
        cuts_sequences: Ranks can share a sequence.
    """

    weights: int
    quantized: int
    trained: int
    adapters: int
    tower: int
    layer: int
    outside_layers: int
    largest: int
    output: int
    trains_output: bool
    vocabulary: int
    model: ModelShape
    shares_prompts: bool
    cuts_sequences: bool


def read_shapes(config: Config, key: str = "model.path") -> Shapes:
    """Build the model on torch's ``meta`` device, which takes no memory, and count.

    Raises:
        ValueError: If the model's configuration cannot be read; the message names the key.
    """
    return _shapes(config.model, key)


@lru_cache(maxsize=16)  # a command asks several times
def _shapes(config: ModelConfig, key: str) -> Shapes:
    try:
        hf = from_pretrained(AutoConfig, config.path, config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key} '{config.path}' has no configuration to read ({error})") from error
    architecture = find_architecture(config.path)
    with torch.device("meta"):
        model = architecture.auto_class.from_config(hf, trust_remote_code=config.trust_remote_code)
    weights = _count(model)
    parts = architecture.parts(model)
    lora = config.lora
    in_4_bits = _in_4_bits(model, parts.lm_head) if lora and lora.load_in_4bit else set()
    quantized = sum(p.numel() for p in in_4_bits)
    tower = 0 if parts.tower is None else _count(parts.tower, without=in_4_bits)
    # What ranks gather and free by itself, or do not shard.
    inside = [*parts.layers]
    if config.freeze_vision_tower and parts.tower is not None:
        inside.append(parts.tower)
        parts.tower.requires_grad_(False)
    else:
        inside += [*parts.tower_blocks, *parts.tower_mergers]
    layered = sum(_count(module, without=in_4_bits) for module in inside)
    layer = _count(parts.layers[0], without=in_4_bits)
    shares_prompts = cuts = architecture.shares_prompts
    if not shares_prompts:
        shares_prompts = _is_packed(config, type(model), hf)
        cuts = shares_prompts and not has_states([*model.get_decoder().modules()])
    if lora is not None:
        model = add_adapters(model, lora, config.freeze_vision_tower)
    output = parts.lm_head.weight
    return Shapes(
        weights=weights,
        quantized=quantized,
        trained=_count(model, trained=True),
        adapters=_count(model) - weights,
        tower=tower,
        layer=layer,
        outside_layers=weights - quantized - layered,
        largest=max(p.numel() for p in model.parameters()),
        output=output.numel(),
        trains_output=output.requires_grad,
        vocabulary=len(output),
        model=architecture.shape(hf),
        shares_prompts=shares_prompts,
        cuts_sequences=cuts,
    )


def _is_packed(config: ModelConfig, model_class: Any, hf: Any) -> bool:
    """True if the probe at the start of a run will find that completions can share a prompt."""
    if config.sharing == "padded":
        return False
    family = cast(Examples, load_family(config.path, trust_remote_code=config.trust_remote_code))
    return verdict_on(model_class, hf, family).status == "packed"


def _in_4_bits(model: torch.nn.Module, lm_head: torch.nn.Module) -> set[torch.Tensor]:
    """The weights that ``model.lora.load_in_4bit`` quantizes."""
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not lm_head)
    return {module.weight for module in linear}


def _count(
    module: torch.nn.Module, trained: bool = False, without: Set[torch.Tensor] = frozenset()
) -> int:
    counted = (p for p in module.parameters() if p.requires_grad or not trained)
    return sum(p.numel() for p in counted if p not in without)
