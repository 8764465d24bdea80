"""The tokens that end a completion, from the model's own files."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.utils import cached_file

from mmr1.vision.families.model_path import read_files

_GENERATION = "generation_config.json"


def declared_stops(path: str, config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ends in ``generation_config.json`` and ``config.json``, and the tokenizer's.

    Raises:
        ValueError: If a file names something that is no token, or transformers would refuse to
            write it beside a checkpoint.
    """
    generation = _generation_config(path)
    found = {tokenizer.eos_token_id}
    for file, owner in (
        (_GENERATION, generation),
        ("config.json", config),
        ("config.json", config.get_text_config()),
    ):
        ids = getattr(owner, "eos_token_id", None)
        listed = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
        for token in listed:
            if isinstance(token, bool) or not isinstance(token, int):
                raise ValueError(
                    f"model.path '{path}': {file} names {token!r} in eos_token_id, which is no id "
                    "of a token; correct it"
                )
        found |= {token for token in listed if token >= 0}  # older models say -1 for none
    return frozenset(found - {None})


def _generation_config(path: str) -> GenerationConfig | None:
    with read_files(path, "model.path", _GENERATION):
        if cached_file(path, _GENERATION, _raise_exceptions_for_missing_entries=False) is None:
            return None
        settings = GenerationConfig.from_pretrained(path)
        settings.validate(strict=True)
        return settings
