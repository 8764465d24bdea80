"""Token counts from sizes alone, against the processors of transformers and qwen-vl-utils."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from qwen_vl_utils import vision_process
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from mmr1.types import MediaRef
from mmr1.vision.budget import (
    PixelBudget,
    VideoBudget,
    fit_frame,
    fit_size,
    frame_indices,
    image_budget,
    image_grid,
    shown_frames,
    tokens,
    video_budget,
    video_grid,
)
from mmr1.vision.images import image_size, load_image
from tests.vision.media import encoded, noise
from tests.vision.odd_sizes import odd_sizes


@pytest.mark.parametrize("budget", [PixelBudget(), PixelBudget(4 * 784, 16 * 784)])
def test_header_counts_equal_the_processor_on_220_images(budget: PixelBudget) -> None:
    size = {"shortest_edge": budget.min_pixels, "longest_edge": budget.max_pixels}
    processor = Qwen2VLImageProcessor(size=size)
    assert image_budget(processor) == budget
    strips = 0
    sizes = odd_sizes(220)
    for width, height in sizes:
        data = encoded(Image.fromarray(noise(width, height)), "BMP")
        ref = MediaRef("image", data=data)
        grid = image_grid(*image_size(ref), budget)
        fitted = processor(images=[load_image(ref, budget)], return_tensors="pt")
        assert tuple(fitted["image_grid_thw"][0].tolist()) == grid
        assert fitted["pixel_values"].shape[0] == 4 * tokens(grid)
        raw = processor(images=[load_image(ref)], return_tensors="pt")["image_grid_thw"][0]
        if tuple(raw.tolist()) != grid and min(width, height) > 14:
            # A strip whose short side was raised to 28 pixels went over the budget in the
            # processor's one pass; fitting first keeps it.
            assert int(raw.prod()) * 14 * 14 > budget.max_pixels >= tokens(grid) * 784
            strips += 1
    assert (strips > 0) == (budget.max_pixels < 784 * 200)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(4, 2000), st.integers(4, 2000))
def test_fitting_holds_the_budget_and_is_final(
    width: int, height: int, low: int, high: int
) -> None:
    budget = PixelBudget(min(low, high) * 784, max(2 * low, high) * 784)
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ValueError, match="more than 200 times"):
            fit_size(width, height, budget)
        return
    narrow = budget.max_pixels < 8 * budget.min_pixels or min(width, height) < 28
    try:
        fitted = fit_size(width, height, budget)
    except ValueError:  # no multiple of 28 lies between the bounds
        if not narrow:
            raise
        return
    assert fit_size(*fitted, budget) == fitted
    assert fitted[0] % 28 == fitted[1] % 28 == 0
    assert budget.min_pixels <= fitted[0] * fitted[1] <= budget.max_pixels


log_sides = st.floats(0, math.log(5000)).map(lambda log: round(math.exp(log)))
"""Sides from 1 to 5,000 pixels, small ones as often as large ones."""


@settings(max_examples=500)
@given(log_sides, log_sides, st.integers(4, 1500), st.integers(1, 20))
@example(42, 3245, 6, 9)  # qwen-vl-utils gives a side of 0
@example(9, 1016, 4, 320)  # as wide as it is by qwen-vl-utils, shrunk by transformers
def test_fitting_is_smart_resize_where_that_keeps_the_budget(
    width: int, height: int, least: int, spread: int
) -> None:
    """Of qwen-vl-utils; of transformers unless a side is half a patch or less."""
    assume(max(width, height) <= 200 * min(width, height))
    budget = PixelBudget(least * 784, least * spread * 784)
    rows, columns = vision_process.smart_resize(
        height, width, 28, budget.min_pixels, budget.max_pixels
    )
    by_transformers = smart_resize(height, width, 28, budget.min_pixels, budget.max_pixels)
    if min(width, height) > 14:
        assert by_transformers == (max(rows, 28), max(columns, 28))
    if 0 in (rows, columns):
        assert min(fit_frame(width, height, 2, VideoBudget(frame=budget))) == 28
        return
    again = smart_resize(rows, columns, 28, budget.min_pixels, budget.max_pixels)
    if rows * columns > budget.max_pixels or again != (rows, columns):
        return  # not within the budget, or not final: fit_size corrects or refuses it
    assert fit_size(width, height, budget) == (columns, rows)


@settings(max_examples=500)
@given(
    st.integers(2, 5000),
    st.floats(1, 120),
    st.floats(0.1, 30),
    st.integers(2, 64),
    st.integers(2, 768),
)
def test_frame_sampling_is_that_of_qwen_vl_utils(
    total: int, rate: float, fps: float, low: int, high: int
) -> None:
    asked = {"fps": fps, "min_frames": low, "max_frames": high}
    try:
        count = vision_process.smart_nframes(asked, total_frames=total, video_fps=rate)
        expected = torch.linspace(0, total - 1, count).round().long().tolist()
    except ValueError:
        with pytest.raises(ValueError, match="frames requested"):
            frame_indices(total, rate, VideoBudget().of(asked), {})
        return
    indices = frame_indices(total, rate, VideoBudget().of(asked), {})
    assert len(indices) == len(expected)
    # linspace works in float32: exact halves may round either way.
    assert max(abs(a - b) for a, b in zip(indices, expected, strict=True)) <= 1


@pytest.mark.parametrize("wishes", [{}, {"nframes": 5}, {"max_frames": 7}, {"nframes": 1}], ids=str)
def test_patches_of_one_frame_take_any_number_of_frames(wishes: dict[str, int]) -> None:
    """Of models whose temporal patch is one frame; qwen-vl-utils counts in pairs."""
    budget = VideoBudget(temporal=1).of(wishes)
    count = wishes.get("nframes") or wishes.get("max_frames") or 9
    indices = frame_indices(135, 30.0, budget, wishes)
    assert len(indices) == count
    assert indices[0] == 0
    assert count == 1 or indices[-1] == 134


@given(st.integers(2, 5000), st.integers(-3, 6000), st.floats(1, 120))
def test_a_fixed_number_of_frames_is_that_of_qwen_vl_utils(
    total: int, asked: int, rate: float
) -> None:
    try:
        count = vision_process.smart_nframes({"nframes": asked}, total, rate)
    except ValueError:
        with pytest.raises(ValueError, match="frames requested"):
            frame_indices(total, rate, VideoBudget(), {"nframes": asked})
        return
    assert len(frame_indices(total, rate, VideoBudget(), {"nframes": asked})) == count


@settings(max_examples=500)
@given(st.integers(2, 3000), st.floats(1, 60), st.floats(-5, 400), st.floats(-5, 400))
def test_start_and_end_are_those_of_qwen_vl_utils(
    total: int, rate: float, start: float, end: float
) -> None:
    asked = {"video_start": start, "video_end": end}
    wishes = {"start": start, "end": end, "nframes": 2}
    try:
        first, last, _ = vision_process.calculate_video_frame_range(asked, total, rate)
    except ValueError:
        with pytest.raises(ValueError, match="no two frames"):
            frame_indices(total, rate, VideoBudget(), wishes)
        return
    assert frame_indices(total, rate, VideoBudget(), wishes) == [first, last]


@settings(max_examples=500)
@given(st.integers(28, 2000), st.integers(28, 2000), st.integers(1, 384).map(lambda n: 2 * n))
@example(296, 1800, 592)  # its share of the pixels is not whole, and the fraction decides
def test_frame_size_is_that_of_qwen_vl_utils(width: int, height: int, count: int) -> None:
    factor, low, high = 28, 128 * 784, 768 * 784
    total = vision_process.MODEL_SEQ_LEN * factor * factor * 0.9
    largest = max(min(high, total / count * 2), int(low * 1.05))
    if max(width, height) > 100 * min(width, height):
        return
    rows, columns = vision_process.smart_resize(height, width, factor, low, largest)
    assert fit_frame(width, height, count, VideoBudget()) == (columns, rows)


def test_video_grids_equal_the_processor_on_24_videos() -> None:
    processor = Qwen2VLVideoProcessor(size={"shortest_edge": 4 * 784, "longest_edge": 64 * 784})
    budget = video_budget(processor, fps=1.0, min_pixels=4 * 784, max_pixels=64 * 784)
    rng = np.random.default_rng(3)
    for _ in range(24):
        width, height, count = (int(v) for v in rng.integers((8, 8, 1), (400, 400, 9)))
        count *= 2
        fitted = fit_frame(width, height, count, budget)
        frames = torch.zeros(count, 3, fitted[1], fitted[0], dtype=torch.uint8)
        for resize in (False, True):  # what is fitted stays as it is, even if resizing is left on
            out = processor(
                videos=[frames], do_resize=resize, do_sample_frames=False, return_tensors="pt"
            )
            grid = tuple(out["video_grid_thw"][0].tolist())
            assert grid == video_grid(width, height, count, budget)


EASYR1, LLAMA_FACTORY = ("easyr1", 262144, 4194304), ("llama_factory", 1024, 589824)
BY_THEIR_OWN_FUNCTIONS = [
    # The size of a picture, that by their functions, and that of the processor.
    (EASYR1, (640, 480), (640, 480), (644, 476)),
    (EASYR1, (300, 200), (627, 418), (616, 420)),  # smart_resize alone: 644 x 420
    (EASYR1, (1000, 37), (2661, 98), (2660, 112)),
    (EASYR1, (3000, 2500), (2243, 1869), (2240, 1876)),  # 4,202,240 pixels
    (EASYR1, (28, 28), (512, 512), (504, 504)),  # 254,016 pixels
    (EASYR1, (1, 90), (53, 4857), (56, 4844)),
    (LLAMA_FACTORY, (300, 200), (300, 200), (308, 196)),
    (LLAMA_FACTORY, (1000, 37), (1000, 37), (1008, 28)),
    (LLAMA_FACTORY, (3000, 2500), (841, 701), (840, 700)),
    (LLAMA_FACTORY, (28, 28), (32, 32), (56, 56)),
    (LLAMA_FACTORY, (30, 5), (78, 28), (112, 56)),  # by its least side
    (LLAMA_FACTORY, (1999, 9), (1999, 28), (1988, 28)),
]


@pytest.mark.parametrize(("limits", "size", "scaled", "fitted"), BY_THEIR_OWN_FUNCTIONS)
def test_a_picture_is_scaled_first_as_two_projects_do_it(limits, size, scaled, fitted):
    name, least, most = limits
    options = {"image_resize": name, "image_min_pixels": least, "image_max_pixels": most}
    processor = Qwen2VLImageProcessor()
    processor.size = {"shortest_edge": 3136, "longest_edge": 12_845_056}
    budget = image_budget(processor, **options)
    assert [*budget.first.sizes(*size)][-1:] == ([] if scaled == size else [scaled])
    assert fit_size(*size, budget) == fitted
    small = budget.of({"max_pixels": 4 * least})  # of one medium
    assert (small.first.max_pixels, small.max_pixels) == (4 * least, budget.max_pixels)


def test_strips_and_limits_that_are_refused_or_cut_when_scaling_first():
    options = {"image_min_pixels": 1024, "image_max_pixels": 589824}
    long = image_budget(Qwen2VLImageProcessor(), **options, image_resize="llama_factory")
    assert [*long.first.sizes(28 * 201, 28)] == [(28 * 180, 28)]
    strict = image_budget(Qwen2VLImageProcessor(), **options, image_resize="easyr1")
    with pytest.raises(ValueError, match="more than 200 times"):
        fit_size(28 * 201, 28, strict)
    with pytest.raises(ValueError, match="min_pixels=9 is above max_pixels=8"):
        strict.of({"min_pixels": 9, "max_pixels": 8})


def test_exactly_so_many_frames_are_shown():
    """Rounded down, and twice where there are too few: by Open-R1-Video's own lines."""
    budget = VideoBudget(num_frames=16)
    assert shown_frames(range(0, 100, 2), budget) == [
        0, 6, 12, 18, 26, 32, 38, 44, 52, 58, 64, 70, 78, 84, 90, 98
    ]  # fmt: skip
    assert shown_frames(range(6), budget) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]
    # The size is that of all sampled frames.
    long = VideoBudget(num_frames=16, total_pixels=2_000_000)
    whole = video_grid(640, 480, 200, replace(long, num_frames=None))
    assert video_grid(640, 480, 200, long)[1:] == whole[1:] != video_grid(640, 480, 16, long)[1:]
    assert (video_grid(640, 480, 200, long)[0], len(shown_frames(range(200), long))) == (8, 16)
    with pytest.raises(ValueError, match=r"num_frames=15: this model reads 2 frames at once"):
        VideoBudget(num_frames=15)


def test_an_image_takes_at_most_1280_tokens_unless_it_is_asked_to():
    """Qwen2.5-VL's processor would take 16,384, more than any prompt of 3,072 tokens holds."""
    processor = Qwen2VLImageProcessor()
    processor.size = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}
    budget = image_budget(processor)
    assert tokens(image_grid(6000, 4000, budget), budget.merge) <= 1280
    own = image_budget(processor, image_max_pixels=12_845_056)
    assert tokens(image_grid(6000, 4000, own), own.merge) > 16_000
    processor.size = {"shortest_edge": 56 * 56, "longest_edge": 401_408}
    assert image_budget(processor).max_pixels == 401_408  # a smaller limit is the processor's
