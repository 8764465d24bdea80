"""Qwen2.5-VL's model: its parts, and how vision features enter the language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import (
    ModelFamily,
    ModelParts,
    ModelShape,
    StackShape,
    decoder_shape,
)
from mmr1.vision.families.qwen2_5_vl import inputs, media, tiny
from mmr1.vision.families.qwen2_5_vl.tower import blank_medium, run_tower
from mmr1.vision.prepare import PreparedMedia


class Qwen25VLArchitecture:
    """An ``Architecture``."""

    auto_class = AutoModelForImageTextToText
    position_rows = 3
    presets = tuple(tiny.PRESETS)

    @property
    def no_mask(self) -> dict[str, None]:
        return {"full_attention": None}

    def load_family(
        self, path: str, config: Any, chat: ChatOptions, **media_options: float
    ) -> ModelFamily:
        return inputs.load_family(path, config, chat, **media_options)

    def shape(self, config: Any) -> ModelShape:
        vision = config.vision_config
        tower = StackShape(
            layers=vision.depth,
            hidden=vision.hidden_size,
            intermediate=vision.intermediate_size,
            queries=vision.hidden_size,
            keys=vision.hidden_size,
            heads=vision.num_heads,
            rows_per_token=vision.spatial_merge_size**2,
        )
        return ModelShape(decoder_shape(config.text_config), tower)

    def parts(self, model: Any) -> ModelParts:
        language_model, tower = model.model.language_model, model.model.visual
        return ModelParts(
            language_model=language_model,
            layers=language_model.layers,
            embed_tokens=language_model.embed_tokens,
            lm_head=model.lm_head,
            tower=tower,
            tower_blocks=tower.blocks,
            tower_mergers=[tower.merger],
            placeholder_ids=(model.config.image_token_id, model.config.video_token_id),
        )

    def media_inputs(self, prepared: Sequence[PreparedMedia]) -> dict[str, torch.Tensor]:
        return media.media_inputs(prepared)

    def encode(self, tower: Any, prepared: Sequence[PreparedMedia]) -> Sequence[torch.Tensor]:
        return run_tower(tower, prepared)

    def blank_medium(self, tower: Any) -> PreparedMedia:
        return blank_medium(tower)

    def language_inputs(
        self, embeddings: torch.Tensor, slots: torch.Tensor, features: torch.Tensor
    ) -> dict[str, Any]:
        placed = embeddings.flatten(0, 1).index_copy(0, slots, features)
        return {"inputs_embeds": placed.view_as(embeddings)}

    def position_ids(self, rope: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """``[3, B, T]``; with places ``[4, B, T]``, of which transformers takes the first off."""
        return rope if places is None else torch.cat([places[None], rope])

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        return tiny.new_model(output, preset, seed, corpus)


ARCHITECTURE = Qwen25VLArchitecture()
