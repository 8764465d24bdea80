"""The tokens that end a completion, from the model's own files."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig


def stop_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    """The ids in ``generation_config.json``, and the tokenizer's end of sequence."""
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # a model without generation_config.json
        ids = None
    listed = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    return tuple(sorted({*listed, tokenizer.eos_token_id}))
