"""Boxes through all spaces and back, and numbers of the wrong space caught."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.boxes import (
    Space,
    SpaceName,
    check_inside,
    convert,
    is_box,
    pixels,
    thousandths,
    to_original,
    unit,
)
from mmr1.vision.budget import PixelBudget, fit_size

sides = st.integers(30, 3000)
Case = tuple[int, int, tuple[int, int, int, int]]


@st.composite
def boxes(draw: st.DrawFn) -> Case:
    """An image's width and height, and a box of whole pixels inside it."""
    width, height = draw(sides), draw(sides)
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    x2, y2 = draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height))
    return width, height, (x1, y1, x2, y2)


@given(boxes())
def test_there_and_back_is_the_same_box(case: Case) -> None:
    width, height, box = case
    original = pixels(width, height)
    for space in (
        pixels(*fit_size(width, height, PixelBudget())),
        pixels(width, height, "xywh"),
        thousandths(),
        thousandths("xywh"),
        unit(),
        unit("xywh"),
    ):
        there = convert(box, original, space)
        assert convert(there, space, original) == pytest.approx(box, abs=1e-6)


@given(boxes())
def test_a_box_answered_in_whole_numbers_is_off_by_half_a_unit(case: Case) -> None:
    """So within a pixel wherever the model saw at least half of the image's sides."""
    width, height, box = case
    seen = fit_size(width, height, PixelBudget())
    spaces: list[tuple[SpaceName, Space]] = [("resized", pixels(*seen)), ("0-1000", thousandths())]
    for name, space in spaces:
        x1, y1, x2, y2 = map(round, convert(box, pixels(width, height), space))
        back = to_original((x1, y1, x2, y2), name, (width, height), seen)
        half_a_unit = 0.5 * max(width / space.width, height / space.height)
        assert back == pytest.approx(box, abs=half_a_unit + 1e-6)


def test_a_row_of_refcoco_in_all_its_forms() -> None:
    """From a VLM-R1 row: 427x640; solution and floor(x1000)."""
    image = pixels(427, 640)
    solution = (103.93, 299.99, 238.15, 477.41)
    scaled = convert(solution, image, thousandths())
    assert [int(v) for v in scaled] == [243, 468, 557, 745]
    xywh = convert(solution, image, pixels(427, 640, "xywh"))
    assert xywh == pytest.approx((103.93, 299.99, 134.22, 177.42))


def test_what_a_policy_writes_is_converted_and_is_no_box() -> None:
    for written in ((20.0, 5.0, 10.0, 9.0), (0.0, 0.0, math.inf, 1.0), (0.0, math.nan, 1.0, 1.0)):
        assert not is_box(to_original(written, "0-1000", (500, 500), None))
    assert to_original((20, 5, 10, 9), "0-1000", (500, 500), None) == (10, 2.5, 5, 4.5)


def test_numbers_of_another_space_are_caught() -> None:
    image = pixels(427, 640)
    with pytest.raises(ValueError, match="may be of another space"):
        check_inside((243, 468, 557, 745), image)
    with pytest.raises(ValueError, match="second corner lies before"):
        check_inside((200, 300, 134, 177), image)
    with pytest.raises(ValueError, match="empty"):
        check_inside((10, 10, 10, 40), image)
    with pytest.raises(ValueError, match="begins outside"):
        check_inside((-9, 0, 5, 5), image)
    for bad in [(1, 2, 3), (1, 2, 3, float("nan")), (1, 2, 3, "4")]:
        with pytest.raises(ValueError, match="not a box"):
            check_inside(bad, image)
    with pytest.raises(ValueError, match="holds no boxes"):
        Space(0, 1)
    assert check_inside((0, 0, 427.6, 640.4), image) == (0, 0, 427, 640)


def test_converting_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, mmr1.boxes; print({'torch', 'numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
