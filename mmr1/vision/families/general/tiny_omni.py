"""Small Qwen-Omni thinkers with random weights: the real classes, sized for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerConfig,
    WhisperFeatureExtractor,
)

from mmr1.vision.families.tiny_tokenizer import VOCABULARY, train_bpe

PRESETS = ("tiny",)
SECONDS = 2
"""The longest sound that a small model's processor reads."""

_HIDDEN = 128
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_AUDIO: dict[str, Any] = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "d_model": 64,
    "output_dim": _HIDDEN,
}
_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "out_hidden_size": _HIDDEN,
}


@dataclass(frozen=True, slots=True)
class Generation:
    """The differences between generations.

    Attributes:
        names: Tokens of media, by the names that the processor asks the tokenizer for.
        patch: Side of a patch in pixels.
        text, audio, vision: Of the configuration, beside what both have.
    """

    config: Callable[..., Any]
    processor: Callable[..., Any]
    names: dict[str, str]
    patch: int
    text: dict[str, Any]
    audio: dict[str, Any]
    vision: dict[str, Any]


_QWEN2_5 = Generation(
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniProcessor,
    {
        "image_token": "<|IMAGE|>",
        "video_token": "<|VIDEO|>",
        "audio_token": "<|AUDIO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    },
    14,
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
    {},
    {"fullatt_block_indexes": [1], "window_size": 112},
)
_QWEN3 = Generation(
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeProcessor,
    {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "audio_token": "<|audio_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    },
    16,
    {
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    },
    {"downsample_hidden_size": 16, "n_window_infer": 100},
    {
        "num_position_embeddings": 64,
        "image_size": 128,
        "apply_vit_abs_pos_embed": True,
        "deepstack_visual_indexes": [0],
    },
)
_GENERATIONS = {"qwen2_5_omni_thinker": _QWEN2_5, "qwen3_omni_moe_thinker": _QWEN3}


def new_model(
    model_type: str, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
) -> int:
    """See ``Architecture.new_model``."""
    generation = _GENERATIONS[model_type]
    tokenizer = _tokenizer(generation, corpus)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(_config(generation, tokenizer)).float()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    pixels = {"shortest_edge": 4 * (2 * generation.patch) ** 2}
    pixels["longest_edge"] = 64 * pixels["shortest_edge"]
    generation.processor(
        Qwen2VLImageProcessor(size=pixels, patch_size=generation.patch),
        Qwen2VLVideoProcessor(size=pixels, patch_size=generation.patch),
        WhisperFeatureExtractor(feature_size=_AUDIO["num_mel_bins"], chunk_length=SECONDS),
        tokenizer,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


def _tokenizer(generation: Generation, corpus: Sequence[str] | None) -> Any:
    names = generation.names
    written = {
        kind: names[f"{place}_bos_token"] + names[f"{kind}_token"] + names[f"{place}_eos_token"]
        for kind, place in (("image", "vision"), ("video", "vision"), ("audio", "audio"))
    }
    parts = "".join(
        f"{{% elif part['type'] == '{kind}' %}}{text}" for kind, text in written.items()
    )
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}" + parts + "{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *names.values())
    return Qwen2Tokenizer(
        tokenizer_object=train_bpe(corpus, special),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        extra_special_tokens=names,
    )


def _config(generation: Generation, tokenizer: Any) -> Any:
    def token_id(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(generation.names.get(name, name)))

    ids = {
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return generation.config(
        text_config={**_TEXT, **ids, **generation.text},
        audio_config={**_AUDIO, **generation.audio},
        vision_config={**_VISION, "patch_size": generation.patch, **generation.vision},
        tie_word_embeddings=False,
        image_token_id=token_id("image_token"),
        video_token_id=token_id("video_token"),
        audio_token_id=token_id("audio_token"),
        vision_start_token_id=token_id("vision_bos_token"),
        vision_end_token_id=token_id("vision_eos_token"),
        audio_start_token_id=token_id("audio_bos_token"),
        audio_end_token_id=token_id("audio_eos_token"),
        user_token_id=tokenizer.encode("user")[0],
        **({"position_id_per_seconds": 13} if generation is _QWEN3 else {}),
    )
