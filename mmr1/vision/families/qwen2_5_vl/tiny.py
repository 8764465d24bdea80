"""Small Qwen2.5-VL models with random weights: the real classes, sized for a CPU.

``mmr1 model new`` writes one. It has a byte-level BPE tokenizer with Qwen's special tokens and a
real ``Qwen2_5_VLProcessor``; it knows nothing until it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2TokenizerFast,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The tokenizer's merges come from text like that of small tasks; other text falls back to bytes.
DEFAULT_CORPUS = (
    "system user assistant You are a helpful assistant.",
    "<think>The picture shows a zero one two three four five six seven eight nine.</think>",
    "<answer>0 1 2 3 4 5 6 7 8 9 10</answer> yes no true false left right up down",
    "Which digit is this? How many shapes are there? Where is the box? Which came first?",
)


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
    tokenizer = _tokenizer(DEFAULT_CORPUS if corpus is None else corpus)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(_config(PRESETS[preset], tokenizer)).float()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    _processor(tokenizer).save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


def _tokenizer(corpus: Sequence[str]) -> Qwen2TokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    bpe.train_from_iterator(list(corpus) * 10, trainer)
    return Qwen2TokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def _processor(tokenizer: Qwen2TokenizerFast) -> Qwen2_5_VLProcessor:
    pixels = {"shortest_edge": 4 * 28 * 28, "longest_edge": 256 * 28 * 28}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=pixels),
        chat_template=CHAT_TEMPLATE,
    )


def _config(size: Preset, tokenizer: Qwen2TokenizerFast) -> Qwen2_5_VLConfig:
    def token_id(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(name))

    text = {
        "vocab_size": 640,
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
