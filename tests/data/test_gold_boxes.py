"""Gold boxes at every door: those of another space are told by their file, not by one row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_prep.conversion import convert
from datasets_prep.stats import collect
from datasets_prep.validate import validate
from mmr1.boxes import check_inside, pixels, thousandths
from mmr1.boxes import convert as convert_box
from mmr1.config import DataConfig
from mmr1.data.forms.boxes import BoxesError, in_pixels
from mmr1.data.quarantine import Quarantine
from mmr1.data.sources import load_samples
from mmr1.vision.budget import PixelBudget
from tests.data.form_rows import SIZE, write_media

INSIDE = [3, 6, 33, 28]
THOUSANDTHS = [[75, 200, 825, 933], [100, 50, 300, 700], [400, 10, 900, 990]]
EXTENTS = [[30, 20, 8, 9], [25, 12, 10, 8], [20, 20, 5, 6]]


def write(folder: Path, boxes: list[list[float]]) -> Path:
    write_media(folder)
    rows: list[dict[str, Any]] = [
        {"problem": f"<image>Where is {n}?", "images": ["a.png"], "answer": box, "task": "iou"}
        for n, box in enumerate(boxes)
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("boxes", "space"), [(THOUSANDTHS, "0 to 1000"), (EXTENTS, "x, y, width, height")]
)
def test_a_file_of_another_space_passes_no_door(
    tmp_path: Path, boxes: list[list[float]], space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, [INSIDE, *boxes])  # the first fits by chance
    said = rf"gold boxes of 3 of 4 records .* fit as {space}"
    with pytest.raises(ValueError, match=said):
        convert("easyr1", path, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    assert any(space in what for where, what in validate(path)[1] if where == str(path))
    for from_bytes in (1 << 30, 0):
        monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", from_bytes)
        with pytest.raises(ValueError, match=said):
            load_samples(path, DataConfig(max_bad_fraction=0.99), Quarantine(0.99))
        with pytest.raises(ValueError, match=space):
            load_samples(path)


def test_corners_in_the_wrong_order_tell_extents_of_the_others(tmp_path: Path) -> None:
    chance = [[5, 6, 20, 15], [3, 4, 10, 12], [2, 2, 9, 9]]
    path = write(tmp_path, [*chance, *EXTENTS[:2]])
    said = "gold boxes of 2 of 5 records .* 5 fit as x, y, width, height"
    with pytest.raises(ValueError, match=said):
        convert("easyr1", path, tmp_path / "out", workers=1)
    assert any("5 fit as" in what for _, what in validate(path)[1])
    assert "5 fit as" in str(collect(path, PixelBudget()).boxes.most_outside())
    with pytest.raises(ValueError, match=said):
        load_samples(path, DataConfig(max_bad_fraction=0.99), Quarantine(0.99))
    path = write(tmp_path, [*chance, INSIDE, *EXTENTS[:2]])  # INSIDE cannot be an extent
    manifest = convert("easyr1", path, tmp_path / "out", workers=1)
    assert manifest["counts"] == {"rows": 6, "records": 4, "dropped": 2}


def test_one_box_outside_drops_its_row_alone(tmp_path: Path) -> None:
    path = write(tmp_path, [INSIDE, INSIDE, THOUSANDTHS[0]])
    assert len(load_samples(path, DataConfig(max_bad_fraction=0.5), Quarantine(0.5))) == 2
    assert convert("easyr1", path, tmp_path / "out", workers=1)["counts"]["dropped"] == 1
    assert len(validate(path)[1]) == 1


corners = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(corners)
def test_a_box_lies_in_its_picture_or_names_where_it_fits(numbers: list[float]) -> None:
    x1, x2 = sorted(numbers[:2])
    y1, y2 = sorted(numbers[2:])
    box = convert_box((x1 * 1000, y1 * 1000, x2 * 1000, y2 * 1000), thousandths(), thousandths())
    try:
        (found,) = in_pixels([box], SIZE)
    except BoxesError as error:
        empty = not (x1 < x2 and y1 < y2)
        assert empty or error.fits
    else:
        assert found == check_inside(box, pixels(*SIZE))
