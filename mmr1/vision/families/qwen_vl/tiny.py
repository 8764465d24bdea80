"""Small Qwen-VL models with random weights: the real classes, sized for a CPU.

``mmr1 model new`` writes one. It has a byte-level BPE tokenizer with Qwen's special tokens and the
real processor of its generation; it knows nothing until it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForImageTextToText,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from mmr1.vision.families.loading import architecture_of
from mmr1.vision.families.tiny_tokenizer import QWEN_TEMPLATE, VOCABULARY, qwen_tokenizer


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a small model. Heads are 32 wide, the least that vLLM's CPU attention takes."""

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


def new_model(
    model_type: str, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
) -> int:
    """See ``Architecture.new_model``."""
    tokenizer, generation = qwen_tokenizer(corpus), _GENERATIONS[model_type]
    torch.manual_seed(seed)
    config = _config(model_type, generation, PRESETS[preset], tokenizer)
    model = AutoModelForImageTextToText.from_config(config).float()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    own, in_files = model.state_dict(), architecture_of(model).in_files
    copy_recipe = {name: in_files(name, weight) for name, weight in own.items()}
    # transformers would turn them back.
    as_it_is = all(copy_recipe[name] is own[name] for name in own)
    model.save_pretrained(output, state_dict=copy_recipe, save_original_format=as_it_is)
    generation.new_processor(tokenizer).save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True, slots=True)
class Generation:
    """The differences between generations: patches, and parts of the configuration.

    Attributes:
        processor: transformers' class.
        patch: Side of a patch in pixels.
        vision: What its towers have beside what all have, of a size.
        text: What its language models have beside what all have.
    """

    processor: Callable[..., Any]
    patch: int
    vision: Callable[[Preset], dict[str, Any]]
    text: dict[str, Any]

    def new_processor(self, tokenizer: Any) -> Any:
        """A processor of images and videos of 4 to 256 tokens."""
        token = (2 * self.patch) ** 2
        pixels = {"shortest_edge": 4 * token, "longest_edge": 256 * token}
        if self.processor is Qwen3VLProcessor:  # its sizes are those of all frames
            frames = {"shortest_edge": 16 * token, "longest_edge": 1024 * token}
            videos: Any = Qwen3VLVideoProcessor(size=frames, cap_pixels_per_frame=True)
        else:
            videos = Qwen2VLVideoProcessor(size=pixels)
        return self.processor(
            image_processor=Qwen2VLImageProcessor(size=pixels, patch_size=self.patch),
            tokenizer=tokenizer,
            video_processor=videos,
            chat_template=QWEN_TEMPLATE,
        )


def _config(model_type: str, generation: Generation, size: Preset, tokenizer: Any) -> Any:
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
        "tie_word_embeddings": False,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **generation.text,
    }
    vision = {
        "depth": size.vision_depth,
        "num_heads": size.vision_heads,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "patch_size": generation.patch,
        **generation.vision(size),
    }
    return CONFIG_MAPPING[model_type](
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
    )


def _qwen2_vision(size: Preset) -> dict[str, Any]:
    return {
        "embed_dim": size.vision_hidden,
        "hidden_size": size.hidden,
        "mlp_ratio": size.vision_intermediate // size.vision_hidden,
    }


def _qwen2_5_vision(size: Preset) -> dict[str, Any]:
    return {
        "hidden_size": size.vision_hidden,
        "intermediate_size": size.vision_intermediate,
        "out_hidden_size": size.hidden,
        "fullatt_block_indexes": [size.vision_depth - 1],
        "window_size": 112,
    }


def _qwen3_vision(size: Preset) -> dict[str, Any]:
    return {
        "hidden_size": size.vision_hidden,
        "intermediate_size": size.vision_intermediate,
        "out_hidden_size": size.hidden,
        "num_position_embeddings": 64,
        # The language model has fewer layers than a real one: the features of one are enough.
        "deepstack_visual_indexes": list(range(size.vision_depth - 1)),
    }


def _qwen3_5_vision(size: Preset) -> dict[str, Any]:
    vision = _qwen3_vision(size)
    return {name: value for name, value in vision.items() if name != "deepstack_visual_indexes"}


_SECTIONS = {
    "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [4, 6, 6]}
}


_QWEN3_TEXT = {
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}


_GENERATIONS = {
    "qwen2_vl": Generation(Qwen2VLProcessor, 14, _qwen2_vision, _SECTIONS),
    "qwen2_5_vl": Generation(Qwen2_5_VLProcessor, 14, _qwen2_5_vision, _SECTIONS),
    "qwen3_vl": Generation(Qwen3VLProcessor, 16, _qwen3_vision, _QWEN3_TEXT),
    "qwen3_vl_moe": Generation(
        Qwen3VLProcessor,
        16,
        _qwen3_vision,
        {
            **_QWEN3_TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "moe_intermediate_size": 96,
        },
    ),
    "qwen3_5": Generation(
        Qwen3VLProcessor,
        16,
        _qwen3_5_vision,
        {
            "head_dim": 64,
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.25,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
    ),
}
