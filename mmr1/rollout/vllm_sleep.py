"""The weights that a sleeping vLLM engine keeps.

At level 2 vLLM forgets its parameters but those that it is told to preserve, which lie in main
memory until it wakes up. It preserves buffers by itself. Tensors that are neither are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig

from mmr1.vision.families.model_path import from_pretrained


def preserved_parameters(path: str, beginnings: Sequence[str]) -> list[str]:
    """Patterns of the parameters that vLLM is to preserve, by its own names.

    Args:
        path: Of the model.
        beginnings: Of their names in the model's files; one without a dot behind is a whole name.

    Raises:
        ValueError: vLLM does not support the model.
    """
    if not beginnings:
        return []
    from vllm.model_executor.models import ModelRegistry

    (architecture, *_) = from_pretrained(AutoConfig, path).architectures
    if architecture not in ModelRegistry.models:
        raise ValueError(
            f"model.path '{path}': vLLM has no class '{architecture}', so a sleeping engine cannot "
            "keep a frozen part of it; set rollout.engine=vllm"
        )
    model_class: Any = ModelRegistry.models[architecture].load_model_cls()
    # What maps the names of files when vLLM loads them; a model without it has the same names.
    mapper = getattr(model_class, "hf_to_vllm_mapper", None)
    names = beginnings if mapper is None else mapper.apply_list(list(beginnings))
    return [f"{name}*" if name.endswith(".") else name for name in names]


def blank_scratch(model: Any) -> None:
    """Zeros where Qwen3-VL adds the inner features of images, in steps without any too.

    They are plain tensors among the weights, and after sleep have whatever was there.
    """
    for scratch in getattr(model, "deepstack_input_embeds", None) or ():
        scratch.zero_()
