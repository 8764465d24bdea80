"""The same image through mmr1, qwen-vl-utils and vLLM: one grid, the same pixels."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from qwen_vl_utils import fetch_image, fetch_video
from transformers import Qwen2VLImageProcessor

from mmr1.config import Config
from mmr1.types import MediaRef
from mmr1.vision import build
from mmr1.vision.budget import image_budget, image_grid
from mmr1.vision.build import family_of
from mmr1.vision.families.loading import load_family
from mmr1.vision.images import image_size, load_image
from tests.vision.media import SHARED, encoded, noise, write_video
from tests.vision.odd_sizes import odd_sizes

LOW, HIGH = 4 * 784, 256 * 784
SIZES = [(17, 17), (640, 480), (31, 500), (1000, 97), (56, 56), (427, 640)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    made = []
    for number, size in enumerate(SIZES):
        path = folder / f"{number}.png"
        path.write_bytes(encoded(Image.fromarray(noise(*size, number))))
        made.append(path)
    if SHARED is not None:
        made += sorted((SHARED / "samples/math_vision/images").glob("*.jpg"))[:6]
    return made


def test_qwen_vl_utils_gives_the_same_pixels(files: list[Path]) -> None:
    processor = Qwen2VLImageProcessor(size={"shortest_edge": LOW, "longest_edge": HIGH})
    for path in files:
        ref = MediaRef("image", path)
        ours = load_image(ref, image_budget(processor))
        theirs = fetch_image({"image": str(path), "min_pixels": LOW, "max_pixels": HIGH})
        assert ours.size == theirs.size
        mine, other = (processor(images=[i], return_tensors="pt") for i in (ours, theirs))
        assert torch.equal(mine["image_grid_thw"], other["image_grid_thw"])
        gap = (mine["pixel_values"] - other["pixel_values"]).abs().max()
        assert gap <= 1e-5
        grid = tuple(mine["image_grid_thw"][0].tolist())
        assert grid == image_grid(*image_size(ref), image_budget(processor))


@pytest.mark.parametrize("size", [(320, 240), (1280, 720), (56, 42)])
def test_videos_have_the_size_that_qwen_vl_utils_gives_them(
    tiny_model: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Whatever the processor of the model says, which speaks of images."""
    path = write_video(tmp_path / "clip.mp4", 20, *size)
    family = load_family(str(tiny_model))
    ref = MediaRef("video", path)
    frames, _ = family.decode_media(ref)
    assert torch.equal(frames.float(), fetch_video({"video": str(path)}))
    merged = (28 * 28) * 2
    assert family.media_tokens(ref) == frames.shape[0] * frames.shape[2] * frames.shape[3] // merged
    assert family.prepare_media(ref).tokens == family.media_tokens(ref)
    if size == (320, 240):
        assert frames.shape[2:] == (280, 392)  # 140 tokens; the processor would make it 99


def test_the_keys_set_the_sizes_everywhere(tiny_model: Path, tmp_path: Path) -> None:
    """Of both kinds, beyond what the processor itself would allow."""
    picture, clip = tmp_path / "picture.png", write_video(tmp_path / "clip.mp4", 20, 320, 240)
    picture.write_bytes(encoded(Image.fromarray(noise(1600, 1200))))
    data = {
        "image": {"min_pixels": 500 * 784, "max_pixels": 600 * 784},
        "video": {
            "min_pixels": 4 * 784,
            "max_pixels": 40 * 784,
            "total_pixels": 120 * 784,
        },
    }
    config = Config(model={"path": str(tiny_model)}, data=data)
    family = family_of(config)
    image, video = MediaRef("image", picture), MediaRef("video", clip)
    assert family.processor.image_processor.size["longest_edge"] < 500 * 784
    assert 500 <= family.media_tokens(image) <= 600
    asked = {"min_pixels": 4 * 784, "max_pixels": 40 * 784, "total_pixels": 120 * 784}
    frames, _ = family.decode_media(video)
    assert torch.equal(frames.float(), fetch_video({"video": str(clip), **asked}))
    prepare = build._load_prepare(config.model, config.data)  # as other processes do
    for ref in (image, video):
        assert family.prepare_media(ref).tokens == family.media_tokens(ref)
        assert prepare(ref).grid == family.prepare_media(ref).grid
    with pytest.raises(ValueError, match=r"above max_pixels=784.* data\.image\.\*"):
        family_of(Config(model={"path": str(tiny_model)}, data={"image": {"max_pixels": 784}}))


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_gives_the_same_pixels(files: list[Path], tmp_path: Path) -> None:
    """vLLM's own multimodal processor, no engine: its grids, pixels and placeholder counts."""
    pytest.importorskip("vllm")
    from vllm.config import ModelConfig
    from vllm.multimodal import MULTIMODAL_REGISTRY

    from mmr1.vision.families.tiny import new_model

    new_model(tmp_path / "model")
    family = load_family(str(tmp_path / "model"))
    budget = image_budget(family.processor)
    config = ModelConfig(str(tmp_path / "model"), dtype="float32", limit_mm_per_prompt={"image": 1})
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    prompt = "<|vision_start|><|image_pad|><|vision_end|>"
    for path in files:
        image = load_image(MediaRef("image", path), budget)
        items = processor.info.parse_mm_data({"image": [image]})
        out = processor(prompt, mm_items=items)
        item = out["mm_kwargs"]["image"][0].get_data()
        mine = family.processor.image_processor(images=[image], return_tensors="pt")
        assert torch.equal(item["image_grid_thw"].reshape(-1), mine["image_grid_thw"].reshape(-1))
        pixels = _normalised(item["pixel_values"], family.processor.image_processor)
        assert (pixels - mine["pixel_values"]).abs().max() <= 1e-5
        t, h, w = image_grid(*image_size(MediaRef("image", path)), budget)
        assert out["prompt_token_ids"].count(family.image_id) == t * h * w // 4


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_counts_what_the_headers_say(tmp_path: Path) -> None:
    """220 images of odd sizes and 24 videos: its placeholders against counts without decoding."""
    pytest.importorskip("vllm")
    from vllm.config import ModelConfig
    from vllm.multimodal import MULTIMODAL_REGISTRY

    from mmr1.vision.families.tiny import new_model

    new_model(tmp_path / "model")
    family = load_family(str(tmp_path / "model"))
    limits = {"image": 1, "video": 1}
    config = ModelConfig(str(tmp_path / "model"), dtype="float32", limit_mm_per_prompt=limits)
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    chance = random.Random(0)
    refs = []
    for number, size in enumerate(odd_sizes(220)):
        path = tmp_path / f"{number}.bmp"
        path.write_bytes(encoded(Image.fromarray(noise(*size)), "BMP"))
        refs.append(MediaRef("image", path))
    for number in range(24):
        width, height = 2 * chance.randint(15, 150), 2 * chance.randint(15, 150)
        frames, fps = chance.randint(2, 40), chance.choice([1, 5, 24, 30])
        path = write_video(tmp_path / f"{number}.mp4", frames, width, height, fps)
        refs.append(MediaRef("video", path, options={"fps": chance.choice([1, 2, 4])}))
    for ref in refs:
        decoded = family.decode_media(ref)
        options = {}
        if ref.kind == "video":
            decoded = (decoded[0], dataclasses.asdict(decoded[1]))
            options = {"do_resize": False, "do_sample_frames": False}
        items = processor.info.parse_mm_data({ref.kind: [decoded]})
        prompt = f"<|vision_start|><|{ref.kind}_pad|><|vision_end|>"
        out = processor(prompt, mm_items=items, hf_processor_mm_kwargs=options)
        pad = family.image_id if ref.kind == "image" else family.video_id
        assert out["prompt_token_ids"].count(pad) == family.media_tokens(ref), ref


def _normalised(pixels: torch.Tensor, processor: Qwen2VLImageProcessor) -> torch.Tensor:
    """Patches ``[N, 3 * 2 * 14 * 14]``: vLLM leaves bytes to be normalised on the device."""
    if pixels.dtype != torch.uint8:
        return pixels
    mean, std = (
        torch.tensor(v).repeat_interleave(2 * 14 * 14)
        for v in (processor.image_mean, processor.image_std)
    )
    return (pixels.float() / 255 - mean) / std
