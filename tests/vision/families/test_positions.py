"""Token ids, counts and positions against each family's own processor, model and vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from qwen_vl_utils import vision_process
from transformers import BatchFeature
from transformers.video_utils import VideoMetadata

from mmr1.types import MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.budget import fit_frame
from mmr1.vision.families.qwen_vl.media import processed
from mmr1.vision.prepare import Medium
from tests.vision.families.tiny_family import FAMILIES, VISION, lasts_longer_than_wide
from tests.vision.media import encoded, noise, write_video

SIDES = st.integers(1, 6)
IMAGE = st.tuples(st.just("image"), SIDES, SIDES)
VIDEO = st.tuples(
    st.just("video"), SIDES, SIDES, st.integers(1, 5), st.sampled_from([1.0, 7.5, 24.0, 29.97])
)


@cache
def model_of(name):
    return FAMILIES[name].model().model


def decoded(tiny, medium):
    """Pixels as ``decode_media`` gives them: already of a size that the model sees."""
    kind, columns, rows, *rest = medium
    factor = tiny.family.images.factor
    width, height = columns * factor, rows * factor
    if kind == "image":
        return Image.fromarray(np.zeros((2 * height, 2 * width, 3), np.uint8))
    patches, fps = rest
    indices = [7 * i for i in range(2 * patches)]
    frames = torch.zeros(2 * patches, 3, height, width, dtype=torch.uint8)
    metadata = VideoMetadata(
        total_num_frames=indices[-1] + 7,
        fps=fps,
        width=width,
        height=height,
        duration=(indices[-1] + 7) / fps,
        frames_indices=indices,
    )
    return frames, metadata


@dataclass
class Read:
    prompt: Prompt
    prepared: list[Medium]
    ids: list[int]
    positions: torch.Tensor
    batch: BatchFeature


def read(tiny, drawn) -> Read:
    """Ids and positions by the family, and what its processor makes of the same prompt."""
    pixels = [decoded(tiny, medium) for medium in drawn]
    refs = [MediaRef(medium[0], data=bytes([i])) for i, medium in enumerate(drawn)]
    prepared = [
        processed(tiny.family.processor, ref, p) for ref, p in zip(refs, pixels, strict=True)
    ]
    parts = [part for i, ref in enumerate(refs) for part in (ref, TextPart(f" then {i} "))]
    prompt = tiny.family.render_prompt(Sample("p", (Message("user", tuple(parts)),)))
    ids = tiny.family.expand_placeholders(prompt.token_ids, prepared)
    images = [p for p in pixels if isinstance(p, Image.Image)]
    videos = [p for p in pixels if not isinstance(p, Image.Image)]
    options = {"do_resize": False, "do_sample_frames": False}
    batch = tiny.family.processor(
        text=[prompt.text],
        images=images or None,
        videos=[frames for frames, _ in videos] or None,
        videos_kwargs={"video_metadata": [m for _, m in videos], **options} if videos else {},
        return_tensors="pt",
        return_mm_token_type_ids=True,
    )
    return Read(prompt, prepared, ids, tiny.family.prompt_positions(ids, prepared), batch)


@pytest.mark.parametrize("name", VISION)
@settings(deadline=None, max_examples=100)
@given(drawn=st.lists(IMAGE | VIDEO, min_size=1, max_size=4))
def test_ids_and_positions_are_those_of_processor_and_model(name, drawn):
    tiny = FAMILIES[name]
    got = read(tiny, drawn)
    batch, prepared = got.batch, got.prepared
    assert batch["input_ids"][0].tolist() == got.ids
    if name != "qwen3_vl":  # after longer videos transformers continues elsewhere: see mrope.py
        assume(not any(map(lasts_longer_than_wide, prepared)))
    grids = {k: batch[k] for k in ("image_grid_thw", "video_grid_thw") if k in batch}
    seconds = [m.seconds_per_grid for m in prepared if m.kind == "video"]
    if name == "qwen2_5_vl" and seconds:
        grids["second_per_grid_ts"] = torch.tensor(seconds)
    expected, _ = model_of(name).get_rope_index(
        batch["input_ids"], batch["mm_token_type_ids"], **grids
    )
    assert torch.equal(got.positions, expected[:, 0])


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 60), st.integers(32, 2500), st.integers(32, 2500))
def test_frames_have_the_sizes_of_qwen_vl_utils(patches, width, height):
    """Of patches of 16 pixels, as ``fetch_video(..., image_patch_size=16)`` sizes them."""
    assume(max(width, height) <= 150 * min(width, height))
    low, high = 128 * 32 * 32, 768 * 32 * 32
    total = vision_process.MODEL_SEQ_LEN * 32 * 32 * 0.9
    largest = max(min(high, total / (2 * patches) * 2), int(low * 1.05))
    rows, columns = vision_process.smart_resize(height, width, 32, low, largest)
    fitted = fit_frame(width, height, 2 * patches, FAMILIES["qwen3_vl"].family.videos)
    assert fitted == (columns, rows)


@pytest.mark.parametrize("name", VISION)
def test_headers_tell_the_length_of_a_prompt(name, tmp_path):
    tiny = FAMILIES[name]
    sizes = [(30, 40), (200, 90), (64, 64), (333, 20)]
    refs = [MediaRef("image", data=encoded(Image.fromarray(noise(*size)))) for size in sizes]
    clip = write_video(tmp_path / "clip.mp4", frames=45, width=120, height=64, fps=15)
    for options in ({}, {"fps": 4.0}, {"nframes": 6}, {"start": 0.6, "end": 2.2, "fps": 3.0}):
        refs.append(MediaRef("video", clip, options=options))
    for ref in refs:
        prompt = tiny.family.render_prompt(Sample("s", (Message("user", (ref, TextPart("?"))),)))
        prepared = tiny.family.prepare_media(ref)
        ids = tiny.family.expand_placeholders(prompt.token_ids, [prepared])
        assert tiny.family.prompt_length(prompt) == len(ids), ref
        assert sum(i in tiny.family.placeholder_kinds for i in ids) == prepared.tokens


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("name", VISION)
def test_positions_are_those_of_vllm(name):
    """Two hundred random prompts, long videos included; vLLM's own code, without an engine."""
    pytest.importorskip("vllm")
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.multimodal.inputs import (
        MultiModalFeatureSpec,
        MultiModalKwargsItems,
        PlaceholderRange,
    )
    from vllm.multimodal.inputs import MultiModalFieldConfig as Field

    tiny = FAMILIES[name]
    config = tiny.model().config
    (architecture,) = config.architectures
    model_class = ModelRegistry._try_load_model_cls(architecture)
    model = model_class.__new__(model_class)
    object.__setattr__(model, "config", config)
    chance = np.random.default_rng(0)
    for _ in range(200):
        drawn = []
        for _ in range(chance.integers(1, 4)):
            side = chance.integers(1, 6, 2).tolist()
            rest = [int(chance.integers(1, 9)), float(chance.choice([1.0, 7.5, 24.0]))]
            drawn.append(("image", *side) if chance.random() < 0.5 else ("video", *side, *rest))
        got = read(tiny, drawn)
        spans = tiny.family.engine_spans(got.prompt.token_ids, got.prepared)
        features = []
        for medium, (start, length) in zip(got.prepared, spans, strict=True):
            arguments = tiny.family.engine_inputs([medium])
            fields = {
                key: Field.batched(medium.kind)
                if value.sizes is None
                else Field.flat_from_sizes(medium.kind, value.sizes)
                for key, value in arguments.items()
            }
            values = {key: value.values for key, value in arguments.items()}
            (item,) = MultiModalKwargsItems.from_hf_inputs(values, fields)[medium.kind]
            place = PlaceholderRange(start, length)
            features.append(MultiModalFeatureSpec(item, medium.kind, medium.digest, place))
        expected, _ = model.get_mrope_input_positions(got.ids, features)
        assert torch.equal(got.positions, expected), drawn
