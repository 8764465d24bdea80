"""Prompts of the Qwen-VL models: processor, placeholder tokens and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoProcessor

from mmr1.boxes import SpaceName
from mmr1.types import MediaKind, MediaRef, Prompt, Sample
from mmr1.vision.budget import (
    PixelBudget,
    VideoBudget,
    image_budget,
    image_grid,
    tokens,
    video_budget,
)
from mmr1.vision.families.chat import Chat, ChatOptions, load_chat, message_parts
from mmr1.vision.families.family import EngineInput, ReadPrompt, read_expanded
from mmr1.vision.families.model_path import from_pretrained
from mmr1.vision.families.qwen_vl.media import (
    engine_inputs,
    measured_image,
    measured_video,
    processed,
)
from mmr1.vision.families.qwen_vl.reading import (
    VideoReading,
    expand_placeholders,
    expanded_spans,
    mrope_positions,
)
from mmr1.vision.families.registry import COORDINATES
from mmr1.vision.families.stopping import declared_stops
from mmr1.vision.images import check_image, image_size, load_image
from mmr1.vision.prepare import Medium
from mmr1.vision.videos import load_video, sampled_grid

VISION_TOKENS = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)


@dataclass(frozen=True, slots=True)
class QwenVLFamily:
    """The family of the Qwen-VL models; a ``PackedFamily``.

    Attributes:
        image_id, video_id: Placeholder tokens.
        images: How large an image may be.
        videos: How many frames of a video are sampled, and how large they may be.
        reading: How a video becomes tokens and positions.
    """

    processor: Any
    chat: Chat
    image_id: int
    video_id: int
    pad_id: int
    stop_ids: tuple[int, ...]
    images: PixelBudget
    videos: VideoBudget
    reading: VideoReading
    forbidden_ids: tuple[int, ...]
    coordinates: SpaceName | None = None

    shares_prompts = True
    recurrent = False

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def placeholder_kinds(self) -> Mapping[int, MediaKind]:
        return {self.image_id: "image", self.video_id: "video"}

    def render_prompt(self, sample: Sample, system_prompt: str | None = None) -> Prompt:
        return self.chat.render(sample, system_prompt)

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> QwenVLFamily:
        return replace(self, chat=self.chat.with_tools(tools))

    def read_text(self, text: str, media: Sequence[Medium]) -> list[int]:
        return self.expand_placeholders(self.chat.tokens(text), media)

    def decode_media(self, media: MediaRef) -> Any:
        if media.kind == "image":
            return load_image(media, self.images)
        return load_video(media, self.videos)

    def media_tokens(self, media: MediaRef) -> int:
        if media.kind == "image":
            budget = self.images.of(media.options)
            return tokens(image_grid(*image_size(media), budget), budget.merge)
        seen = tokens(sampled_grid(media, self.videos), self.videos.frame.merge)
        return seen + self.reading.text_tokens(media, self.videos)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.token_ids) + sum(self.media_tokens(m) - 1 for m in prompt.media)

    def prepare_media(self, media: MediaRef) -> Medium:
        return processed(self.processor, media, self.decode_media(media))

    def measure_media(self, media: MediaRef) -> Medium:
        if media.kind == "image":
            return measured_image(self.processor, media, image_size(media), self.images)
        return measured_video(self.processor, media, self.videos)

    def check_media(self, media: MediaRef) -> Medium:
        if media.kind == "image":
            return measured_image(self.processor, media, check_image(media), self.images)
        load_video(media, self.videos)
        return measured_video(self.processor, media, self.videos)

    def read_prompt(self, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
        return read_expanded(self, prompt, media)

    def expand_placeholders(self, token_ids: Sequence[int], media: Sequence[Medium]) -> list[int]:
        return expand_placeholders(self.placeholder_kinds, token_ids, media, self.reading.expansion)

    def prompt_positions(self, prompt_ids: Sequence[int], media: Sequence[Medium]) -> torch.Tensor:
        grids = [grid for medium in media for grid in self.reading.grids(medium)]
        return mrope_positions(prompt_ids, grids, (self.image_id, self.video_id))

    def completion_start(self, prompt_positions: torch.Tensor) -> int:
        return int(prompt_positions.max()) + 1

    def engine_inputs(self, media: Sequence[Medium]) -> dict[str, EngineInput]:
        return engine_inputs(media, self.reading.timed)

    def engine_spans(
        self, token_ids: Sequence[int], media: Sequence[Medium]
    ) -> list[tuple[int, int]]:
        return expanded_spans(self.placeholder_kinds, token_ids, media, self.reading.expansion)

    def engine_processor_options(
        self, kinds: Sequence[MediaKind], rates: Sequence[float]
    ) -> dict[str, Any]:
        # Media come sampled and resized; doing it again could change the grid.
        options = {"do_resize": False} if kinds else {}
        return {**options, "do_sample_frames": False} if "video" in kinds else options

    def engine_grid(self, kind: MediaKind, inputs: Mapping[str, Any]) -> tuple[int, int, int]:
        t, h, w = inputs[f"{kind}_grid_thw"].tolist()
        return t, h, w


def load_family(
    path: str,
    config: Any,
    chat: ChatOptions,
    trust_remote_code: bool,
    read_videos: Callable[[Any, Any], VideoReading],
    **media_options: float | str,
) -> QwenVLFamily:
    """See ``Architecture.load_family``."""
    processor = from_pretrained(AutoProcessor, path, trust_remote_code)
    if hasattr(processor.video_processor, "cap_pixels_per_frame"):
        processor.video_processor.cap_pixels_per_frame = True  # as decode_media does it
    tokenizer = processor.tokenizer
    _check_tokenizer(path, processor, config)
    stops = declared_stops(path, config, tokenizer)
    own_chat = load_chat(path, config, processor, tokenizer, message_parts, chat, stops)
    vision_ids = {tokenizer.convert_tokens_to_ids(name) for name in VISION_TOKENS}
    return QwenVLFamily(
        processor=processor,
        chat=own_chat,
        image_id=config.image_token_id,
        video_id=config.video_token_id,
        pad_id=tokenizer.pad_token_id,
        stop_ids=own_chat.stop_ids,
        images=image_budget(processor, **media_options),
        videos=video_budget(processor, **media_options),
        reading=read_videos(processor, config),
        coordinates=COORDINATES.get(config.model_type),
        forbidden_ids=own_chat.forbidden(vision_ids | {tokenizer.pad_token_id}),
    )


def _check_tokenizer(path: str, processor: Any, config: Any) -> None:
    """Check that the tokenizer has its file; without it transformers makes an empty one."""
    tokenizer = processor.tokenizer
    for token, expected in (
        ("<|image_pad|>", config.image_token_id),
        ("<|video_pad|>", config.video_token_id),
    ):
        if tokenizer.convert_tokens_to_ids(token) != expected:
            raise ValueError(
                f"model.path '{path}': its tokenizer ({len(tokenizer)} tokens) has no {token} with "
                f"the id {expected} of config.json; copy tokenizer.json and tokenizer_config.json "
                "of the model there"
            )
