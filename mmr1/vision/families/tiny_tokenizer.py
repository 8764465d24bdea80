"""Tokenizers of small models: byte-level BPE with few merges, and the family's special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2TokenizerFast

QWEN_TOKENS = (
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
)

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

VOCABULARY = 640
"""Rows of the embeddings; the tokenizer has fewer tokens."""

# The tokenizer's merges come from text like that of small tasks; other text falls back to bytes.
DEFAULT_CORPUS = (
    "system user assistant You are a helpful assistant.",
    "<think>The picture shows a zero one two three four five six seven eight nine.</think>",
    "<answer>0 1 2 3 4 5 6 7 8 9 10</answer> yes no true false left right up down",
    "Which digit is this? How many shapes are there? Where is the box? Which came first?",
)


def train_bpe(corpus: Sequence[str] | None, special_tokens: Sequence[str]) -> Tokenizer:
    """600 tokens: special ones first, then bytes and merges learned from ``corpus``."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special_tokens),
        show_progress=False,
    )
    bpe.train_from_iterator(list(DEFAULT_CORPUS if corpus is None else corpus) * 10, trainer)
    return bpe


def qwen_tokenizer(
    corpus: Sequence[str] | None, template: str = QWEN_TEMPLATE
) -> Qwen2TokenizerFast:
    """A tokenizer with the special tokens of Qwen2 and later, and a template for their turns."""
    return Qwen2TokenizerFast(
        tokenizer_object=train_bpe(corpus, QWEN_TOKENS),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
    )
