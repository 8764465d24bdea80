"""A model's twin: its class and configuration, so small that a probe costs a second.

Whether completions can share a prompt depends on a model's code and on its configuration, and not
on how wide it is or on what it has learned. So the twin has random weights, one layer of each type
and few of them, and windows that a short prompt crosses.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig

from mmr1.trainer.forward.any_model.forward import compute_soft_caps

MOST_PARAMETERS = 400_000_000
"""A twin of more is not built: it would take as long as what it is to save."""

WINDOW = 8
LAYERS = 3

_DEPTH = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers",
          "decoder_layers")  # fmt: skip
_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "index_topk")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")

_STREAM = ("hidden_size", "n_embd", "d_model", "embed_dim", "word_embed_proj_dim",
           "embedding_size", "out_hidden_size", "output_dim", "lru_width", "block_dim", "conv_dim",
           "shared_intermediate_size", "shared_expert_intermediate_size")  # fmt: skip
_HEADS = ("head_dim", "attention_head_dim", "kv_channels", "global_head_dim", "v_head_dim",
          "qk_nope_head_dim", "qk_rope_head_dim", "linear_key_head_dim", "linear_value_head_dim",
          "mamba_d_head", "mamba_head_dim", "mamba_headdim")  # fmt: skip
_WIDTHS: Mapping[int, tuple[str, ...]] = {
    # inside a layer
    96: ("intermediate_size", "ffn_dim", "n_inner", "ff_dim", "d_ff", "ffn_hidden_size",
         "decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "block_ff_dim"),
    32: ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_shared_expert_intermediate_size",
         "kv_lora_rank", "q_lora_rank", "qk_head_dim", "index_head_dim"),
    16: ("mamba_d_state", "state_size", "ssm_state_size"),
    8: ("mamba_n_heads", "mamba_num_heads", "hidden_size_per_layer_input", "laurel_rank"),
    128: ("mamba_d_ssm",),
    # how many, and how many are chosen
    4: ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
        "encoder_attention_heads", "linear_num_value_heads", "time_step_rank", "mamba_dt_rank",
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    2: ("linear_num_key_heads", "num_experts_per_tok", "moe_topk", "moe_k", "expand",
        "num_experts_per_token", "top_k_experts", "mamba_expand", "index_n_heads"),
    1: ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "n_groups",
        "mamba_n_groups", "n_mamba_heads"),
    0: ("zero_expert_num", "num_kv_shared_layers"),
}  # fmt: skip
"""The size of what has these names in transformers' configurations, where it is larger."""

_PICTURES: Mapping[int, tuple[str, ...]] = {32: ("image_size",), 8: ("patch_size",)}
_VOCABULARY: Mapping[int, tuple[str, ...]] = {
    128: ("vocab_size", "vocab_size_per_layer_input"),
    1: ("bos_token_id",),
    2: ("eos_token_id",),
    0: ("pad_token_id",),
}


@dataclass(frozen=True, slots=True)
class _Size:
    """The dimensions of a twin.

    Attributes:
        parts: Parts that are narrow; all have few layers.
        head: Width of the heads; None for their own.
    """

    parts: Literal["all", "language", "none"]
    head: int | None = 16


_SIZES = (_Size("all"), _Size("all", None), _Size("language"), _Size("language", None),
          _Size("none", None))  # fmt: skip


def twins(
    model_class: Any, config: Any, reads: bool, *, narrow_tower: bool = True
) -> Iterator[Any]:
    """Float32 models of a class, on the CPU, each larger than the one before.

    Some configurations cannot be made smaller everywhere: then the next one is built.

    Args:
        config: Configuration of the model; it is not changed.
        reads: They will be given the tokens and the pictures of the model's own processor.
        narrow_tower: The tower of vision may be narrow too.
    """
    for size in _SIZES:
        if size.parts == "all" and not narrow_tower:
            continue
        small = copy.deepcopy(config)
        language = small.get_text_config()
        before = _head_width(language)
        stream = 64 if size.head or not before or _value(language, "head_dim") else 4 * before
        _shrink(small, language, size, stream, keeps_tokens=reads)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            try:
                if _parameters(model_class, small) > MOST_PARAMETERS:
                    continue
                twin = model_class._from_config(small).float()
            except Exception:  # a configuration may refuse its new sizes in any way
                continue
            _enlarge(twin)
        compute_soft_caps(twin)
        yield twin.eval()


def _parameters(model_class: Any, config: Any) -> int:
    with torch.device("meta"):
        model = model_class._from_config(copy.deepcopy(config))
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def _enlarge(model: torch.nn.Module) -> None:
    """Enlarge the weights: at initialisation some hardly matter, or are 0, and hide errors."""
    for name, weight in model.named_parameters():
        matrix = weight.dim() > 1
        if "sinks" in name:
            weight.normal_()
        elif matrix and not weight.any():
            weight.normal_(std=0.1)
        elif matrix and weight.std() < 0.05:
            weight.mul_(4)
        if matrix and any(part in name for part in _ATTENDS):
            weight.mul_(3)


_ATTENDS = ("q_proj", "k_proj", "qkv", "query_key_value", "c_attn", "Wqkv")


def _shrink(config: Any, language: Any, size: _Size, stream: int, keeps_tokens: bool) -> None:
    for part in _values(config).values():
        if isinstance(part, PreTrainedConfig):
            _shrink(part, language, size, stream, keeps_tokens)
    if size.parts == "all" or (size.parts == "language" and config is language):
        before = _head_width(config)
        heads, shared = (_value(config, n) for n in ("num_attention_heads", "num_key_value_heads"))
        _cut(config, {stream: _STREAM, **_WIDTHS})
        if size.head:
            _cut(config, {size.head: _HEADS})
            for settings in _values(config).values():  # of a kind of layers
                if isinstance(settings, dict):
                    _cut_entries(settings, {size.head: _HEADS, **_WIDTHS})
        if isinstance(shared, int):
            _set(config, "num_key_value_heads", 4 if shared == heads else min(shared, 2))
        if _value(config, "state_size") and _value(config, "head_dim"):  # heads fill the width
            inner = stream * (_value(config, "expand") or 1)
            _set(config, "num_heads", inner // config.head_dim)
        inner, of_state = (_value(config, name) for name in ("mamba_d_ssm", "mamba_n_heads"))
        if inner and of_state:
            _set(config, "mamba_d_head", inner // of_state)
        _scale_rotary(config, before)
    elif size.parts == "language":  # a tower ends in the width of the language model
        _cut(config, {stream: ("out_hidden_size", "output_dim")})
    if not keeps_tokens:
        _cut(config, {512: _LENGTHS})
        _cut(config, _VOCABULARY, known=True)
        _cut(config, _PICTURES if size.parts == "all" else {})
    _cut(config, {WINDOW: _WINDOWS})
    _cut_layers(config)


def _cut_layers(config: Any) -> None:
    """Keep at least one layer of each type, in their order."""
    types = _value(config, "layer_types")
    if isinstance(types, list | tuple) and types:
        count = max(2, *(types.index(kind) + 1 for kind in types))
        _set(config, "num_hidden_layers", count)
        for name in ("layer_types", "mlp_layer_types"):
            if isinstance(of_layers := _value(config, name), list | tuple):
                _set(config, name, list(of_layers[:count]))
        return
    _cut(config, {LAYERS: _DEPTH})
    if isinstance(_value(config, "deepstack_visual_indexes"), list | tuple):
        _set(config, "deepstack_visual_indexes", list(range(LAYERS)))


def _cut(config: Any, sizes: Mapping[int, tuple[str, ...]], known: bool = False) -> None:
    for size, names in sizes.items():
        for name in names:
            old = _value(config, name)
            if isinstance(old, int) and not isinstance(old, bool) and (old > size or known):
                _set(config, name, size)


def _cut_entries(settings: dict[str, Any], sizes: Mapping[int, tuple[str, ...]]) -> None:
    for size, names in sizes.items():
        for name in names:
            old = settings.get(name)
            if isinstance(old, int) and not isinstance(old, bool) and old > size:
                settings[name] = size


def _head_width(config: Any) -> int | None:
    own, hidden, heads = (
        _value(config, name) for name in ("head_dim", "hidden_size", "num_attention_heads")
    )
    if isinstance(own, int):
        return own
    both = isinstance(hidden, int) and isinstance(heads, int) and heads
    return hidden // heads if both else None


def _scale_rotary(config: Any, before: int | None) -> None:
    """Scale the sections of M-RoPE with the width of a head."""
    after, rope = _head_width(config), _value(config, "rope_parameters")
    if not isinstance(rope, dict) or not before or not after or after >= before:
        return
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        sections = part.get("mrope_section")
        if not sections:
            continue
        total = sum(sections) * after // before
        scaled = [max(1, n * after // before) for n in sections]
        scaled[0] += total - sum(scaled)
        part["mrope_section"] = scaled


def _values(config: Any) -> dict[str, Any]:
    return {name: _value(config, name) for name in list(vars(config))}


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # some are properties of what is not there
        return None


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a property: what it is made of was set
        return
