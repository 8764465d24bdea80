"""Small Qwen2.5-VL models with random weights: the real classes, sized for a CPU.

``mmr1 model new`` writes one. It has a byte-level BPE tokenizer with Qwen's special tokens and a
real ``Qwen2_5_VLProcessor``; it knows nothing until it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2TokenizerFast,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmr1.vision.families.tiny_tokenizer import QWEN_TEMPLATE, VOCABULARY, qwen_tokenizer


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a small model. ``head_dim`` is 32, the least that vLLM's CPU attention takes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vision_depth: int
    vision_hidden: int
    vision_intermediate: int
    vision_heads: int


PRESETS = {
    "tiny": Preset(128, 256, 2, 4, 2, 2, 64, 128, 4),
    "20m": Preset(256, 2304, 6, 8, 4, 4, 256, 2048, 8),
}


def new_model(output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None) -> int:
    """See ``Architecture.new_model``."""
    tokenizer = qwen_tokenizer(corpus)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(_config(PRESETS[preset], tokenizer)).float()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    _processor(tokenizer).save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


def _processor(tokenizer: Qwen2TokenizerFast) -> Qwen2_5_VLProcessor:
    pixels = {"shortest_edge": 4 * 28 * 28, "longest_edge": 256 * 28 * 28}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=pixels),
        chat_template=QWEN_TEMPLATE,
    )


def _config(size: Preset, tokenizer: Qwen2TokenizerFast) -> Qwen2_5_VLConfig:
    def token_id(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(name))

    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "max_position_embeddings": 2048,
        "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": False,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": size.vision_depth,
        "hidden_size": size.vision_hidden,
        "intermediate_size": size.vision_intermediate,
        "num_heads": size.vision_heads,
        "out_hidden_size": size.hidden,
        "fullatt_block_indexes": [size.vision_depth - 1],
        "window_size": 112,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
    )
