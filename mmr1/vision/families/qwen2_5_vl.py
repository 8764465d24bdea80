"""Qwen2.5-VL: its processor, its placeholder tokens and its three-row (M-RoPE) positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor, GenerationConfig

from mmr1.types import MediaRef, Prompt, Sample, TextPart
from mmr1.vision.budget import (
    PixelBudget,
    VideoBudget,
    image_budget,
    image_grid,
    tokens,
    video_budget,
)
from mmr1.vision.images import image_size, load_image
from mmr1.vision.prepare import PreparedMedia
from mmr1.vision.videos import load_video, sampled_grid

MODEL_TYPE = "qwen2_5_vl"
PLACEHOLDERS = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)


@dataclass(frozen=True, slots=True)
class Family:
    """What mmr1 has to know of one model's inputs.

    Attributes:
        processor: The model's own processor (tokenizer, image and video processors).
        images: How large an image may be.
        videos: How many frames of a video are sampled, and how large they may be.
        tokens_per_second: Temporal positions per second of video.
        stop_ids: Tokens that end a completion.
        forbidden_ids: Vision placeholders and padding. A completion that holds a placeholder cannot
            be fed back, so they are outside the policy's vocabulary: engines never sample them and
            the trainer's softmax leaves them out too.
    """

    processor: Any
    image_id: int
    video_id: int
    pad_id: int
    stop_ids: tuple[int, ...]
    images: PixelBudget
    videos: VideoBudget
    tokens_per_second: float
    forbidden_ids: tuple[int, ...]

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer


def load_family(path: str, **video_wishes: float) -> Family:
    """Read the processor beside a Qwen2.5-VL model.

    Args:
        path: Model directory or hub name.
        video_wishes: ``fps``, ``max_frames``, ... in place of the defaults of ``VideoBudget``.

    Raises:
        ValueError: There is no model at ``path``, or it is of another kind.
    """
    config = check_model(path)
    try:
        processor = AutoProcessor.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path '{path}': its processor cannot be loaded: {error}") from error
    tokenizer = processor.tokenizer
    stop_ids = _stop_ids(path, tokenizer)
    never = {tokenizer.convert_tokens_to_ids(name) for name in PLACEHOLDERS}
    return Family(
        processor=processor,
        image_id=config.image_token_id,
        video_id=config.video_token_id,
        pad_id=tokenizer.pad_token_id,
        stop_ids=stop_ids,
        images=image_budget(processor),
        videos=video_budget(processor, **video_wishes),
        tokens_per_second=float(config.vision_config.tokens_per_second),
        forbidden_ids=tuple(sorted((never | {tokenizer.pad_token_id}) - {None, *stop_ids})),
    )


def _stop_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # a model without generation_config.json
        ids = None
    listed = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    return tuple(sorted({*listed, tokenizer.eos_token_id}))


def check_model(path: str, key: str = "model.path") -> Any:
    """The configuration of the model at ``path``, which the configuration names in ``key``.

    Raises:
        ValueError: There is none, or it is of another kind.
    """
    # A path that looks like one must exist: the hub's error for it would speak of repositories.
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if (looks_local or Path(path).exists()) and not (Path(path) / "config.json").is_file():
        raise ValueError(
            f"{key} '{path}' is not a model directory (no config.json there); "
            "make a small one with 'mmr1 model new' or name a Hugging Face model"
        )
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{key} '{path}' does not exist here and cannot be had from the hub: {first_line}"
        ) from error
    if config.model_type != MODEL_TYPE:
        raise ValueError(
            f"{key} '{path}' is a '{config.model_type}' model; mmr1 trains vision-language "
            f"models of type '{MODEL_TYPE}' (Qwen2.5-VL)"
        )
    return config


def render_prompt(family: Family, sample: Sample, system_prompt: str | None = None) -> Prompt:
    """Apply the chat template up to the assistant's turn; each medium stays one placeholder."""
    turns: list[dict[str, Any]] = []
    if system_prompt is not None and all(m.role != "system" for m in sample.messages):
        turns.append({"role": "system", "content": system_prompt})
    for message in sample.messages:
        if message.role == "assistant" and message is sample.messages[-1]:
            break  # a demonstration's answer is not part of its prompt
        content = [
            {"type": "text", "text": part.text}
            if isinstance(part, TextPart)
            else {"type": part.kind}
            for part in message.parts
        ]
        turns.append({"role": message.role, "content": content})
    text = family.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = family.tokenizer(text, add_special_tokens=False)["input_ids"]
    return Prompt(sample=sample, text=text, token_ids=tuple(ids))


def decode_media(family: Family, media: MediaRef) -> Any:
    """Pixels of one medium, sampled and resized to what the model sees.

    Engines and trainer both start from these, so their processors have nothing left to resize.

    Returns:
        A PIL image, or for a video ``(frames [T, 3, H, W] uint8, VideoMetadata)``.
    """
    if media.kind == "image":
        return load_image(media, family.images)
    return load_video(media, family.videos)


def media_tokens(family: Family, media: MediaRef) -> int:
    """Tokens the medium will take in a prompt, from its header: nothing is decoded."""
    if media.kind == "image":
        budget = family.images.of(media.options)
        return tokens(image_grid(*image_size(media), budget), budget.merge)
    return tokens(sampled_grid(media, family.videos), family.videos.frame.merge)


def prompt_length(family: Family, prompt: Prompt) -> int:
    """Tokens of a prompt with its placeholders expanded, media measured by their headers."""
    return len(prompt.token_ids) + sum(media_tokens(family, m) - 1 for m in prompt.media)


def prepare_media(family: Family, media: MediaRef) -> PreparedMedia:
    """Decode one medium and run the model's processor on it, once."""
    if media.kind == "image":
        processor = family.processor.image_processor
        batch = processor(images=[decode_media(family, media)], return_tensors="pt")
        patches, grid, seconds = batch["pixel_values"], batch["image_grid_thw"][0], None
    else:
        processor = family.processor.video_processor
        frames, metadata = decode_media(family, media)
        batch = processor(
            videos=[frames],
            video_metadata=[metadata],
            do_resize=False,
            do_sample_frames=False,
            return_tensors="pt",
        )
        patches, grid = batch["pixel_values_videos"], batch["video_grid_thw"][0]
        seconds = processor.temporal_patch_size / metadata.sampled_fps
    t, h, w = grid.tolist()
    return PreparedMedia(
        kind=media.kind,
        patches=patches.float(),
        grid=(t, h, w),
        merge=processor.merge_size,
        seconds_per_grid=seconds,
        digest=media.digest(),
        patch_size=processor.patch_size,
    )


def expand_placeholders(
    family: Family, token_ids: Sequence[int], media: Sequence[PreparedMedia]
) -> list[int]:
    """Repeat each placeholder as often as its medium has merged tokens.

    Raises:
        ValueError: Placeholders and media differ in number or in kind.
    """
    kinds = {family.image_id: "image", family.video_id: "video"}
    expected = [kinds[i] for i in token_ids if i in kinds]
    given = [m.kind for m in media]
    if expected != given:
        raise ValueError(f"the prompt has placeholders for {expected} and the media are {given}")
    queue = iter(media)
    expanded: list[int] = []
    for token in token_ids:
        expanded.extend([token] * next(queue).tokens if token in kinds else [token])
    return expanded


def prompt_positions(
    family: Family, prompt_ids: Sequence[int], media: Sequence[PreparedMedia]
) -> torch.Tensor:
    """M-RoPE positions of an expanded prompt: ``[3, P]`` int64, rows time, height, width.

    Text advances all rows together. A medium spans its grid from the next free position on, and
    what follows starts after the largest position of any row, as in the Qwen2.5-VL release and in
    vLLM. (transformers 5 steps over the larger *spatial* side only, which differs for videos that
    last longer than they are wide; positions are therefore always passed to the model.) A
    completion continues at ``prompt_positions(...).max() + 1`` on all rows.
    """
    pieces: list[torch.Tensor] = []
    queue = iter(media)
    start, index = 0, 0
    while index < len(prompt_ids):
        if prompt_ids[index] in (family.image_id, family.video_id):
            medium = next(queue)
            piece = _grid_positions(family, medium) + start
        else:
            piece = (start + torch.arange(_text_run(family, prompt_ids, index))).expand(3, -1)
        pieces.append(piece)
        index += piece.shape[1]
        start = int(piece.max()) + 1
    return torch.cat(pieces, dim=1) if pieces else torch.zeros(3, 0, dtype=torch.int64)


def _text_run(family: Family, prompt_ids: Sequence[int], start: int) -> int:
    """Number of text tokens from ``start`` to the next placeholder or the end."""
    end = start
    while end < len(prompt_ids) and prompt_ids[end] not in (family.image_id, family.video_id):
        end += 1
    return end - start


def _grid_positions(family: Family, medium: PreparedMedia) -> torch.Tensor:
    t, h, w = medium.grid
    per_frame = 1.0
    if medium.seconds_per_grid is not None:
        per_frame = medium.seconds_per_grid * family.tokens_per_second
    time = (torch.arange(t) * per_frame).long()
    axes = (time, torch.arange(h // medium.merge), torch.arange(w // medium.merge))
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).reshape(3, -1)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a peft model; its adapters stay in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
