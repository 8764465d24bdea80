"""The Qwen-VL models: their parts, and how vision features enter the language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import (
    ModelFamily,
    ModelParts,
    ModelShape,
    decoder_shape,
)
from mmr1.vision.families.general.model import GeneralArchitecture, tower_shape
from mmr1.vision.families.qwen_vl import inputs, media, tiny
from mmr1.vision.families.qwen_vl.reading import (
    VideoReading,
    frames_with_times,
    whole_videos,
)
from mmr1.vision.families.qwen_vl.tower import blank_medium, run_tower
from mmr1.vision.prepare import Medium

_EXPERTS = re.compile(r"\.mlp\.experts\.(gate_up_proj|down_proj)$")
"""Weights of all experts of a layer: ``[experts, in, out]`` on the hub."""


@dataclass(frozen=True, slots=True)
class QwenVLArchitecture:
    """The architecture of the Qwen-VL models; a ``PackedArchitecture``.

    Attributes:
        model_type: Type of these models.
        read_videos: Function of a processor and a configuration: how videos become tokens and
            positions.
        gated_tower: The tower's MLPs have gates, and its norms are RMSNorm.
        normed_heads: The language model normalises queries and keys.
        masks_by_layer: The language model takes masks by the type of a layer.
    """

    model_type: str
    read_videos: Callable[[Any, Any], VideoReading]
    gated_tower: bool = False
    normed_heads: bool = False
    masks_by_layer: bool = True

    auto_class = AutoModelForImageTextToText
    shares_prompts = True
    position_rows = 3
    presets = tuple(tiny.PRESETS)

    @property
    def no_mask(self) -> Any:
        return {"full_attention": None} if self.masks_by_layer else torch.empty(0, 0, 0, 0)

    def load_family(
        self,
        path: str,
        config: Any,
        chat: ChatOptions,
        trust_remote_code: bool,
        **media_options: float | str,
    ) -> ModelFamily:
        return inputs.load_family(
            path, config, chat, trust_remote_code, self.read_videos, **media_options
        )

    def shape(self, config: Any) -> ModelShape:
        language = decoder_shape(config.text_config, self.normed_heads)
        return ModelShape(language, tower_shape(config, self.gated_tower))

    def parts(self, model: Any) -> ModelParts:
        language_model, tower = model.model.language_model, model.model.visual
        return ModelParts(
            language_model=language_model,
            layers=language_model.layers,
            embed_tokens=language_model.embed_tokens,
            lm_head=model.lm_head,
            tower=tower,
            tower_blocks=tower.blocks,
            tower_mergers=[tower.merger, *getattr(tower, "deepstack_merger_list", ())],
            placeholder_ids=(model.config.image_token_id, model.config.video_token_id),
        )

    def media_inputs(self, prepared: Sequence[Medium]) -> dict[str, torch.Tensor]:
        return media.media_inputs(prepared)

    def encode(self, tower: Any, prepared: Sequence[Medium]) -> Sequence[torch.Tensor]:
        return run_tower(tower, prepared)

    def blank_medium(self, tower: Any) -> Medium:
        return blank_medium(tower)

    def language_inputs(
        self, embeddings: torch.Tensor, slots: torch.Tensor, features: torch.Tensor
    ) -> dict[str, Any]:
        last, *inner = features.split(embeddings.shape[-1], dim=-1)
        placed = embeddings.flatten(0, 1).index_copy(0, slots, last)
        given: dict[str, Any] = {"inputs_embeds": placed.view_as(embeddings)}
        if inner:
            seen = torch.zeros(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
            given["visual_pos_masks"] = seen.view(-1).index_fill(0, slots, True).view_as(seen)
            given["deepstack_visual_embeds"] = inner
        return given

    def position_ids(self, rope: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """Position ids ``[3, B, T]``; or ``[4, B, T]``, whose first transformers splits off."""
        return rope if places is None else torch.cat([places[None], rope])

    def in_files(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight.transpose(1, 2).contiguous() if _EXPERTS.search(name) else weight

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        return tiny.new_model(self.model_type, output, preset, seed, corpus)


QWEN2_VL = QwenVLArchitecture("qwen2_vl", whole_videos)
QWEN2_5_VL = QwenVLArchitecture("qwen2_5_vl", whole_videos, gated_tower=True)
QWEN3_VL = QwenVLArchitecture(
    "qwen3_vl", frames_with_times, normed_heads=True, masks_by_layer=False
)
QWEN3_VL_MOE = replace(QWEN3_VL, model_type="qwen3_vl_moe")

# Three of four layers are linear attention, whose state cannot be shared by attention.
QWEN3_5 = GeneralArchitecture(tuple(tiny.PRESETS), partial(tiny.new_model, "qwen3_5"))
