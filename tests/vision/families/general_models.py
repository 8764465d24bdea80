"""Tiny random models of classes that mmr1 does not name, with processors made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    Gemma3Config,
    Gemma3Processor,
    Glm4vConfig,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    GotOcr2ImageProcessor,
    Idefics3Config,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLConfig,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.utils import is_num2words_available

from mmr1.vision.families import tiny
from mmr1.vision.families.tiny_tokenizer import VOCABULARY, train_bpe

TURNS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TEMPLATE = (
    "{{% for message in messages %}}<|im_start|>{{{{ message['role'] }}}}\n"
    "{{% if message['content'] is string %}}{{{{ message['content'] }}}}{{% else %}}"
    "{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'text' %}}{{{{ part['text'] }}}}"
    "{{% elif part['type'] == 'image' %}}{image}{{% else %}}{video}{{% endif %}}"
    "{{% endfor %}}{{% endif %}}<|im_end|>\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
)

SIDE, PATCH = 32, 8
TEXT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
VISION: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
SQUARE = {"height": SIDE, "width": SIDE}


def new_model(name: str, output: Path, seed: int = 0, **text: Any) -> None:
    """Write a model directory of one of :data:`MODELS`, or of a family, with random weights.

    Args:
        text: Keys of the language model's configuration, in place of those below.
    """
    if name not in MODELS:
        tiny.new_model(output, seed=seed, family=name)
        return
    config, processor = MODELS[name]()
    config.text_config.update(text)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():  # or nothing would be seen
                parameter.normal_(std=0.1)
    tokenizer = processor.tokenizer
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    if name in ("llava", "llava_onevision", "gemma3"):
        _name_as_on_the_hub(output / "model.safetensors")
    processor.save_pretrained(output)


def _name_as_on_the_hub(file: Path) -> None:
    """Their towers have a level more there, which transformers takes off and vLLM expects."""
    weights = load_file(file)
    before, after = "vision_tower.", "vision_tower.vision_model."
    save_file({n.replace(before, after): t for n, t in weights.items()}, file, {"format": "pt"})


def _tokenizer(special: tuple[str, ...], image: str, video: str = "", **named: str) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(None, (*TURNS, *special)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.format(image=image, video=video),
        extra_special_tokens=named,
    )


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|im_start|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return {**TEXT, **ids, **more}


def idefics3() -> tuple[Any, Any]:
    """Large images are split into rows and columns; pixels have a dimension for the batch."""
    places = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]
    own = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *places)
    tokenizer = _tokenizer(own, "<image>")
    images = Idefics3ImageProcessor(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
    )
    config = Idefics3Config(
        text_config={"model_type": "llama", **_text(tokenizer)},
        vision_config=dict(VISION),
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return config, processor


def llava_onevision() -> tuple[Any, Any]:
    """An image in several crops whose number goes with its size; videos."""
    tokenizer = _tokenizer(("<image>", "<video>"), "<image>", "<video>")
    grid = [[SIDE * i, SIDE * j] for i in (1, 2) for j in (1, 2)]
    processor = LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=grid),
        tokenizer,
        LlavaOnevisionVideoProcessor(size=SQUARE),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **_text(tokenizer)},
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **VISION},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=grid,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    return config, processor


def llava() -> tuple[Any, Any]:
    """A square image, and names of the language model that the Hub's files do not have."""
    tokenizer = _tokenizer(("<image>",), "<image>")
    processor = LlavaProcessor(
        CLIPImageProcessor(size=SQUARE, crop_size=SQUARE),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    config = LlavaConfig(
        text_config={"model_type": "llama", **_text(tokenizer)},
        vision_config={"model_type": "clip_vision_model", **VISION},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-2,
        tie_word_embeddings=False,
    )
    return config, processor


def smolvlm() -> tuple[Any, Any]:
    """Idefics3's layers, and a processor that writes numbers as words."""
    places = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]
    own = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *places)
    tokenizer = _tokenizer(own, "<image>")
    sizes = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    processor = SmolVLMProcessor(
        SmolVLMImageProcessor(**sizes),
        tokenizer,
        SmolVLMVideoProcessor(**sizes),
        image_seq_len=4,
        chat_template=tokenizer.chat_template,
    )
    config = SmolVLMConfig(
        text_config={"model_type": "llama", **_text(tokenizer)},
        vision_config=dict(VISION),
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return config, processor


def internvl() -> tuple[Any, Any]:
    """Images and videos are the same argument, one tile after the other."""
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = _tokenizer(tuple(names.values()), "<IMG_CONTEXT>", "<video>", **names)
    processor = InternVLProcessor(
        GotOcr2ImageProcessor(size=SQUARE, min_patches=1, max_patches=4, crop_to_patches=True),
        tokenizer,
        InternVLVideoProcessor(size=SQUARE),
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )
    config = InternVLConfig(
        text_config={"model_type": "qwen2", **_text(tokenizer)},
        vision_config={**VISION, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return config, processor


def gemma3() -> tuple[Any, Any]:
    """Tokens of an image see each other, by an argument with an entry for each token; a sliding
    window; norms and embeddings of its own kind.
    """
    names = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    newlines = tuple("\n" * n for n in (1, 2, 3, 4))  # Gemma's vocabulary has them, and vLLM asks
    tokenizer = _tokenizer((*names.values(), *newlines), "<start_of_image>", **names)
    # As Gemma's own: vLLM 0.32 does not find a picture that a line break follows.
    tokenizer.chat_template = tokenizer.chat_template.replace("part['text']", "part['text'] | trim")
    processor = Gemma3Processor(
        Gemma3ImageProcessor(size=SQUARE),
        tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=4,
    )
    config = Gemma3Config(
        text_config=_text(tokenizer, sliding_window=16, query_pre_attn_scalar=32),
        vision_config=dict(VISION),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    return config, processor


def glm4v() -> tuple[Any, Any]:
    """Rotary positions of three rows that the model makes itself, and frames with their times."""
    own = [f"<|{at}_of_{kind}|>" for kind in ("image", "video") for at in ("begin", "end")]
    names = {"image_token": "<|image|>", "video_token": "<|video|>"}
    image, video = f"{own[0]}<|image|>{own[1]}", f"{own[2]}<|video|>{own[3]}"
    tokenizer = _tokenizer((*own, *names.values()), image, video, **names)
    pixels = {"shortest_edge": 16 * PATCH**2, "longest_edge": 64 * PATCH**2}
    images, videos = (
        processor(size=pixels, patch_size=PATCH)
        for processor in (Glm4vImageProcessor, Glm4vVideoProcessor)
    )
    processor = Glm4vProcessor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    ids = tokenizer.convert_tokens_to_ids(own)
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}
    # transformers has these biases always, vLLM only where config.json says so.
    text = {"rope_parameters": {**rope, "rope_theta": 1e4}, "attention_bias": True}
    config = Glm4vConfig(
        text_config=_text(tokenizer, **text),
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": TEXT["hidden_size"],
            "image_size": SIDE,
            "patch_size": PATCH,
        },
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        image_start_token_id=ids[0],
        image_end_token_id=ids[1],
        video_start_token_id=ids[2],
        video_end_token_id=ids[3],
        tie_word_embeddings=False,
    )
    return config, processor


MODELS: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "idefics3": idefics3,
    "llava_onevision": llava_onevision,
    "llava": llava,
    "internvl": internvl,
    "gemma3": gemma3,
    "glm4v": glm4v,
}
if is_num2words_available():  # its processor asks for it
    MODELS = {**MODELS, "smolvlm": smolvlm}
FAMILIES = ("qwen3_5",)
"""Small models that mmr1 makes, and that share no prompts."""
SEES_VIDEOS = ("llava_onevision", "internvl", "glm4v", *FAMILIES)
