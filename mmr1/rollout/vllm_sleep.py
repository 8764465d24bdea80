"""The weights that a sleeping vLLM engine keeps.

At level 2 vLLM forgets its parameters but those that it is told to preserve, which lie in main
memory until it wakes up. It preserves buffers by itself. Tensors that are neither are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig

from mmr1.vision.families.model_path import from_pretrained


def preserved_parameters(
    path: str, beginnings: Sequence[str], trust_remote_code: bool = False
) -> list[str]:
    """Patterns of the parameters that vLLM is to preserve, by its own names.

    Args:
        path: Path of the model.
        beginnings: Beginnings of their names in the model's files; one without a dot behind is a
            whole name.

    Raises:
        ValueError: vLLM does not support the model.
    """
    if not beginnings:
        return []
    from vllm.model_executor.models import ModelRegistry

    (architecture, *_) = from_pretrained(AutoConfig, path, trust_remote_code).architectures
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


def blank_scratch(runner: Any) -> None:
    """Zero the plain tensors among the weights, which after sleep have arbitrary values.

    Qwen3-VL adds the inner features of images from them, in steps without any too. The second model
    runner, which vLLM takes on GPUs, has positions (M-RoPE) and input embeddings, of which CUDA
    graphs also read the rows that pad a step.
    """
    scratch = [*(getattr(runner.model, "deepstack_input_embeds", None) or ())]
    state = getattr(runner, "model_state", None)
    for owner in (state, *(getattr(state, name, None) for name in _STATES)):
        scratch += [t for t in vars(owner).values() if isinstance(t, torch.Tensor)] if owner else []
    for tensor in scratch:
        tensor.zero_()


_STATES = ("rope_state", "encoder_runner")  # of the second runner's model state
