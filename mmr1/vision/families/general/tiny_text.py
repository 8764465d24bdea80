"""Text models, of which there are small ones: the real classes with random weights, for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from mmr1.vision.families.general.model import GeneralArchitecture
from mmr1.vision.families.tiny_tokenizer import (
    QWEN_TEMPLATE,
    VOCABULARY,
    qwen_tokenizer,
    train_bpe,
)

LLAMA_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
)

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

THINKING_TEMPLATE = QWEN_TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Qwen3's: an empty thought in the prompt keeps the model from thinking."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a small model. Heads are 32 wide, the least that vLLM's CPU attention takes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


PRESETS = {"tiny": Preset(128, 256, 2, 4, 2), "20m": Preset(256, 2304, 10, 8, 4)}


def new_model(
    model_type: str, output: Path, preset: str, seed: int, corpus: Sequence[str] | None
) -> int:
    """See ``Architecture.new_model``."""
    make_config, make_tokenizer = _KINDS[model_type]
    tokenizer, size = make_tokenizer(corpus), PRESETS[preset]
    config = make_config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float()
    # As the models of the hub: a turn ends the completion, and so does the end of the text.
    ends = ("<|endoftext|>", "<|end_of_text|>")
    known = tokenizer.get_vocab()
    of_text = [known[name] for name in ends if name in known]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *of_text]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


def _thinking_tokenizer(corpus: Sequence[str] | None) -> Any:
    return qwen_tokenizer(corpus, THINKING_TEMPLATE)


def _llama_tokenizer(corpus: Sequence[str] | None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(corpus, LLAMA_TOKENS),
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        chat_template=LLAMA_TEMPLATE,
    )


_KINDS: Mapping[str, tuple[Callable[..., Any], Callable[[Sequence[str] | None], Any]]] = {
    "qwen2": (Qwen2Config, qwen_tokenizer),
    "qwen3": (Qwen3Config, _thinking_tokenizer),
    "llama": (LlamaConfig, _llama_tokenizer),
}


QWEN2, QWEN3, LLAMA = (
    GeneralArchitecture(
        tuple(PRESETS),
        partial(new_model, model_type),
        reads_text=True,
        normed_heads=model_type == "qwen3",
    )
    for model_type in _KINDS
)
