"""Prompts by Hugging Face's own road: chat template, PIL or qwen-vl-utils, processor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from mmr1_contrib.lab.audit.recipe import Recipe
from mmr1_contrib.lab.audit.step_file import AuditError

MEDIA = re.compile(
    r"\.(png|jpe?g|webp|bmp|gif|tiff?|avif|heic|mp4|avi|mkv|webm|mov|m4v|ts|flv|wmv|mpe?g)$", re.I
)


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the processor of the model makes it.

    Attributes:
        text: Rendered chat template.
        ids: Token ids, placeholders expanded, ``[P]``.
        inputs: Other inputs of the model's forward, such as ``pixel_values``.
        grids: Grid of each medium, ``[M, 3]``; empty for other processors.
        patches: Patches of all media, ``[N, D]``; None where the processor makes no such.
        positions: M-RoPE positions of the prompt and the next position; None: the model's own.
    """

    text: str
    ids: torch.Tensor
    inputs: Mapping[str, torch.Tensor]
    grids: torch.Tensor
    patches: torch.Tensor | None = None
    positions: tuple[torch.Tensor, int] | None = None


def media_in_row(place: str) -> int | None:
    """Return the number of media files that a raw row names; None if the row cannot be found.

    Args:
        place: File and line, ``FILE:LINE``, or file and number, ``FILE[NUMBER]``.
    """
    line = re.fullmatch(r"(.+):(\d+)", place)
    item = re.fullmatch(r"(.+)\[(\d+)\]", place)
    try:
        if line is not None:
            with Path(line[1]).open(encoding="utf-8") as rows:
                text = next(row for number, row in enumerate(rows, 1) if number == int(line[2]))
            return _named_media(json.loads(text))
        if item is not None and item[1].endswith(".json"):
            return _named_media(json.loads(Path(item[1]).read_text("utf-8"))[int(item[2])])
    except (OSError, ValueError, IndexError, KeyError, TypeError, StopIteration):
        return None
    return None


def _named_media(value: Any) -> int:
    if isinstance(value, str):
        return int(bool(MEDIA.search(value)) and "\n" not in value and len(value) < 1000)
    if isinstance(value, Mapping):
        return sum(map(_named_media, value.values()))
    return sum(map(_named_media, value)) if isinstance(value, list) else 0


def read_prompt(processor: Any, messages: Sequence[Any], recipe: Recipe, tps: float) -> ReadPrompt:
    """Render, decode and process a prompt.

    Args:
        processor: Processor of the model, or its tokenizer for a text model.
        messages: Messages of the manifest.
        tps: Temporal positions a second of the model (``tokens_per_second``).
    """
    conversation = _conversation(messages, recipe)
    options = recipe.get("data.chat_template_kwargs", {})
    text = processor.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True, **options
    )
    if not hasattr(processor, "image_processor"):
        ids = torch.tensor(processor(text, add_special_tokens=False)["input_ids"])
        return ReadPrompt(text, ids, {}, torch.zeros(0, 3, dtype=torch.int32))
    arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
    images = [_image(part["image"]) for part in _parts(conversation, "image")]
    if images:
        arguments |= {"images": images, **_image_budget(processor, recipe)}
    seconds: list[float] = []
    if videos := list(_parts(conversation, "video")):
        arguments |= _videos(processor, videos, seconds)
    made = dict(processor(**arguments))
    ids = made.pop("input_ids")[0]
    patches = [made[key] for key in ("pixel_values", "pixel_values_videos") if key in made]
    grids = [made[key] for key in ("image_grid_thw", "video_grid_thw") if key in made]
    positions = None
    if videos and "video_grid_thw" in made:
        positions = mrope(processor, ids, made, [s * tps for s in seconds])
    ordered = len(grids) == 1 and patches[0].ndim == 2
    return ReadPrompt(
        text,
        ids,
        {key: value for key, value in made.items() if isinstance(value, torch.Tensor)},
        torch.cat(grids).int() if grids else torch.zeros(0, 3, dtype=torch.int32),
        patches[0].float() if ordered else None,
        positions,
    )


def _conversation(messages: Sequence[Any], recipe: Recipe) -> list[dict[str, Any]]:
    conversation: list[dict[str, Any]] = []
    system = recipe.get("data.system_prompt")
    if system and not any(message["role"] == "system" for message in messages):
        conversation.append({"role": "system", "content": [{"type": "text", "text": system}]})
    for message in messages:
        parts = [
            part
            if part["type"] == "text"
            else {"type": part["type"], part["type"]: part["path"], **_sampling(part, recipe)}
            for part in message["content"]
        ]
        conversation.append({"role": message["role"], "content": parts})
    return conversation


def _sampling(part: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Options of a medium: the configuration's, under those of the record."""
    if part["type"] != "video":
        return dict(part["options"])
    names = ("fps", "max_frames", "num_frames", "min_pixels", "max_pixels", "total_pixels")
    found = {**{name: recipe.get(f"data.video.{name}") for name in names}, **part["options"]}
    if "nframes" in found:  # in place of a rate
        found |= {"fps": None, "max_frames": None}
    return {key: value for key, value in found.items() if value is not None}


def _parts(conversation: Sequence[Mapping[str, Any]], kind: str) -> list[Any]:
    parts = (part for message in conversation for part in message["content"])
    return [part for part in parts if part["type"] == kind]


def _image(path: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except OSError as error:
        raise AuditError(f"the image {path} cannot be read: {error}") from error


def _image_budget(processor: Any, recipe: Recipe) -> dict[str, Any]:
    low, high = recipe.get("data.image.min_pixels"), recipe.get("data.image.max_pixels")
    size = getattr(processor.image_processor, "size", None)
    if low is None and high is None:
        return {}
    if size is None or "shortest_edge" not in size:
        raise AuditError("data.image.min_pixels and max_pixels of this processor are not known")
    return {
        "size": {
            "shortest_edge": low if low is not None else size["shortest_edge"],
            "longest_edge": high if high is not None else size["longest_edge"],
        }
    }


def _videos(processor: Any, parts: Sequence[Any], seconds: list[float]) -> dict[str, Any]:
    """Arguments of the processor for videos, as the model's authors make them.

    Args:
        seconds: Gets the seconds between two temporal positions of each video.
    """
    from qwen_vl_utils import vision_process

    vision_process.VIDEO_READER_BACKENDS["audit"] = _read_video
    vision_process.get_video_reader_backend = lambda: "audit"
    size = processor.image_processor.patch_size
    fetched = [
        vision_process.fetch_video(
            dict(part),
            image_patch_size=size,
            return_video_sample_fps=True,
            return_video_metadata=True,
        )
        for part in parts
    ]
    read = [_shown(*each) for each in zip(fetched, parts, strict=True)]
    seconds += [2 / rate for _, _, rate in read]
    return {
        "videos": [frames for frames, _, _ in read],
        "video_metadata": [metadata for _, metadata, _ in read],
        "do_sample_frames": False,
        "do_resize": False,
    }


def _shown(video: Any, part: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any], float]:
    """Frames, metadata and rate of a fetched video; ``num_frames`` of them, evenly spread."""
    ((frames, metadata), rate), count = video, part.get("num_frames")
    if count is None:
        return frames, metadata, float(rate)
    places = torch.linspace(0, len(frames) - 1, count).long().tolist()
    indices = [int(metadata["frames_indices"][place]) for place in places]
    rate = float(rate) * count / len(frames)
    return frames[places], {**metadata, "frames_indices": indices}, rate


def _read_video(element: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any], float]:
    """Decode the frames that qwen-vl-utils asks for, by PyAV."""
    import av
    from qwen_vl_utils import vision_process

    with av.open(element["video"]) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        rate = float(stream.average_rate)
    start, end, count = vision_process.calculate_video_frame_range(element, len(frames), rate)
    wanted = vision_process.smart_nframes(element, total_frames=count, video_fps=rate)
    indices = torch.linspace(start, end, wanted).round().long().tolist()
    chosen = torch.from_numpy(np.stack([frames[i] for i in indices])).permute(0, 3, 1, 2)
    metadata = {
        "fps": rate,
        "frames_indices": indices,
        "total_num_frames": count,
        "video_backend": "pyav",
    }
    return chosen, metadata, wanted / max(count, 1e-6) * rate


def mrope(
    processor: Any, ids: torch.Tensor, made: Mapping[str, Any], steps: Sequence[float]
) -> tuple[torch.Tensor, int]:
    """Return the positions of Qwen2.5-VL's release, ``[3, P]``, and the next position.

    After a run of vision tokens the positions continue one after the largest of the run.

    Args:
        steps: Temporal positions between two temporal patches of each video.
    """
    tokenizer = processor.tokenizer
    image = tokenizer.convert_tokens_to_ids(getattr(processor, "image_token", "<|image_pad|>"))
    video = tokenizer.convert_tokens_to_ids(getattr(processor, "video_token", "<|video_pad|>"))
    merge = processor.image_processor.merge_size
    grids = {
        image: iter(
            [(grid, 0.0) for grid in made.get("image_grid_thw", torch.zeros(0, 3)).tolist()]
        ),
        video: iter(list(zip(made["video_grid_thw"].tolist(), steps, strict=True))),
    }
    tokens, columns, after, at = ids.tolist(), list[tuple[int, int, int]](), 0, 0
    while at < len(tokens):
        if tokens[at] not in grids:
            columns.append((after, after, after))
            after, at = after + 1, at + 1
            continue
        (t, h, w), step = next(grids[tokens[at]])
        run = [
            (after + int(a * step), after + b, after + c)
            for a in range(int(t))
            for b in range(int(h) // merge)
            for c in range(int(w) // merge)
        ]
        columns += run
        after, at = max(map(max, run)) + 1, at + len(run)
    return torch.tensor(columns).T, after
