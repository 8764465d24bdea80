"""Boxes through all spaces and back, and numbers of the wrong space caught."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.vision.boxes import Space, check_inside, convert, pixels, rounded, thousandths, unit
from mmr1.vision.budget import PixelBudget, fit_size

sides = st.integers(30, 3000)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, int, tuple[float, ...]]:
    width, height = draw(sides), draw(sides)
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return (
        width,
        height,
        (x1, y1, draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height))),
    )


@given(boxes())
def test_round_trips_are_exact_to_half_a_pixel(case: tuple) -> None:
    width, height, box = case
    original = pixels(width, height)
    resized = pixels(*fit_size(width, height, PixelBudget()))
    spaces = [
        resized,
        pixels(width, height, "xywh"),
        pixels(width, height, inclusive=True),
        thousandths(),
        thousandths("xywh"),
        unit(),
        unit("xywh"),
    ]
    for space in spaces:
        back = convert(convert(box, original, space), space, original)
        assert back == pytest.approx(box, abs=1e-6)
    # Whole numbers in the resized image are what the model says: half a unit there is at most
    # half an original pixel wherever the model sees the image enlarged.
    if resized.width >= width and resized.height >= height:
        whole = rounded(convert(box, original, resized), resized)
        assert convert(whole, resized, original) == pytest.approx(box, abs=0.5 + 1e-9)


def test_a_row_of_refcoco_in_all_its_forms() -> None:
    """From a VLM-R1 row: 427x640; solution, inclusive bbox_list, and floor(x1000)."""
    image = pixels(427, 640)
    solution = (103.93, 299.99, 238.15, 477.41)
    inclusive = (103.93, 299.99, 237.15, 476.41)
    assert convert(inclusive, pixels(427, 640, inclusive=True), image) == pytest.approx(solution)
    scaled = convert(solution, image, thousandths())
    assert [int(v) for v in scaled] == [243, 468, 557, 745]
    xywh = convert(solution, image, pixels(427, 640, "xywh"))
    assert xywh == pytest.approx((103.93, 299.99, 134.22, 177.42))


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
