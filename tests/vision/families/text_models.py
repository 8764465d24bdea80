"""Text models that mmr1 does not name, made once, and their log-probs by transformers' forward."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    MistralConfig,
    Olmo2Config,
)

from mmr1.config import ModelConfig
from mmr1.trainer.models.loading import load_model
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny_tokenizer import VOCABULARY, qwen_tokenizer

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 32}
MODELS = {
    "mistral": MistralConfig(**GROUPED, sliding_window=12),
    "gemma3_text": Gemma3TextConfig(**GROUPED, sliding_window=1024),
    "gemma2": Gemma2Config(**GROUPED, sliding_window=1024, final_logit_softcapping=0.5),
    "olmo2": Olmo2Config(**SIZES, num_key_value_heads=2),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}
TOGETHER = ("gemma3_text", "olmo2", "gpt_neox")
"""Whose prompts the transformers engine decodes together: Mistral's window is short."""
REFUSED = "gemma2"
"""Its logits are capped, so they are not those of its output embedding."""
QUESTIONS = ("How many days has a week?", "Why? Think of it, please, before you say a word.")


@cache
def folder_of(name: str) -> Path:
    config = MODELS[name]
    folder = Path(tempfile.mkdtemp(prefix="mmr1-text-")) / name
    tokenizer = qwen_tokenizer(None)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = None
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(4 if any(n in part for n in ("q_proj", "k_proj")) else 2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parts_of(name: str, sharing: str = "auto"):
    path = str(folder_of(name))
    config = ModelConfig(path=path, dtype="float32", sharing=sharing)
    return load_family(path), load_model(config).eval()


def prompts_of(family):
    samples = [Sample(q, (Message("user", (TextPart(q),)),)) for q in QUESTIONS]
    return [family.render_prompt(sample, "Be brief.") for sample in samples]


@torch.no_grad()
def plain_logprobs(family, model, ids: list[int]) -> np.ndarray:
    """``[T - 1]`` by transformers' own forward."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    logits[:, list(family.forbidden_ids)] = -torch.inf
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[1:, None])[:, 0].numpy()
