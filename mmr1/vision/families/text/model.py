"""Text models: their parts. No tower, and one row of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoModelForCausalLM

from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import ModelFamily, ModelParts, ModelShape, decoder_shape
from mmr1.vision.families.text import inputs, tiny
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class TextArchitecture:
    """A ``PackedArchitecture`` of a ``model_type``."""

    model_type: str

    auto_class = AutoModelForCausalLM
    shares_prompts = True
    position_rows = 1
    presets = tuple(tiny.PRESETS)

    no_mask = torch.empty(0, 0, 0, 0)

    def load_family(
        self,
        path: str,
        config: Any,
        chat: ChatOptions,
        trust_remote_code: bool,
        **media_options: float | str,
    ) -> ModelFamily:
        return inputs.load_family(path, chat, trust_remote_code)

    def shape(self, config: Any) -> ModelShape:
        return ModelShape(decoder_shape(config, normed_heads=self.model_type == "qwen3"))

    def parts(self, model: Any) -> ModelParts:
        return ModelParts(
            language_model=model.model,
            layers=model.model.layers,
            embed_tokens=model.model.embed_tokens,
            lm_head=model.lm_head,
            tower=None,
            tower_blocks=(),
            tower_mergers=(),
            placeholder_ids=(),
        )

    def media_inputs(self, media: Sequence[Medium]) -> dict[str, torch.Tensor]:
        return {}

    def encode(self, tower: Any, media: Sequence[Medium]) -> NoReturn:
        raise AssertionError("a text model has no tower")

    def blank_medium(self, tower: Any) -> NoReturn:
        raise AssertionError("a text model has no tower")

    def language_inputs(
        self, embeddings: torch.Tensor, slots: torch.Tensor, features: torch.Tensor
    ) -> NoReturn:
        raise AssertionError("a text model sees nothing")

    def position_ids(self, rope: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        return rope[0]

    def in_files(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        return tiny.new_model(self.model_type, output, preset, seed, corpus)


QWEN2 = TextArchitecture("qwen2")
QWEN3 = TextArchitecture("qwen3")
LLAMA = TextArchitecture("llama")
